#include <cpu/small_module.h>
#include <cpu/targets.h>

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "cpu/small_module.cpp"
#include <hwy/foreach_target.h>

#include <cpu/conversion-inl.h>
#include <cpu/math-inl.h>
#include <cpu/vector-inl.h>
#include <cpu/visibility.h>
#include <cpu/workspace.h>

#include <algorithm>
#include <utility>

HWY_BEFORE_NAMESPACE();
namespace torch_attention::cpu {
namespace HWY_NAMESPACE {

/// Sets x[i] = exp(x[i]) for i < n, exactly 0 for -inf. Overwrites up to a
/// vector more.
template <typename X>
void exponentiate(X* x, int64_t n) {
  const Tag<X> d;
  for (int64_t i = 0; i < n; i += kLanes<X>) {
    const auto in = load(d, x + i);
    const auto out = exp</*kExactZero=*/false, X>(in);
    const auto hidden = hn::Eq(in, hn::Set(d, -kInfinity<X>));
    store(hn::IfThenZeroElse(hidden, out), d, x + i);
  }
}

/// Sets sums[d] = sum over s of weights[s] * rows[s][d], for d < kCount. The
/// sums stay in registers: through memory each would wait for the one before.
template <int kCount, typename X>
void add_up(const X* weights, const X* rows, int64_t row, int64_t n, X* sums) {
  X sum[kCount] = {};
  for (int64_t s = 0; s < n; ++s) {
    for (int d = 0; d < kCount; ++d) {
      sum[d] += weights[s] * rows[s * row + d];
    }
  }
  std::copy(sum, sum + kCount, sums);
}

/// Sets sums[d] as `add_up<kCount>` does, for all d < D.
template <typename X>
void add_up(
    const X* weights,
    const X* rows,
    int64_t row,
    int64_t n,
    int64_t D,
    X* sums) {
  int64_t d = 0;
  for (; d + 4 <= D; d += 4) {
    add_up<4>(weights, rows + d, row, n, sums + d);
  }
  for (; d < D; ++d) {
    add_up<1>(weights, rows + d, row, n, sums + d);
  }
}

/// The intermediate results for one sequence.
template <typename X>
struct SmallMemory {
  X* query = nullptr; // (T, H * D)
  X* key = nullptr; // (T, G * D)
  X* value = nullptr; // (T, G * D)
  X* weights = nullptr; // (H, T, T), anything where hidden; room for a vector
  X* context = nullptr; // (T, H * D)

  SmallMemory(Parts& parts, const SmallModule<X>& m) {
    const auto T = m.num_tokens;
    query = parts.take<X>(T * m.num_heads * m.head_dim);
    key = parts.take<X>(T * m.num_kv_heads * m.head_dim);
    value = parts.take<X>(T * m.num_kv_heads * m.head_dim);
    weights = parts.take<X>(m.num_heads * T * T + kLanes<X>);
    context = parts.take<X>(T * m.num_heads * m.head_dim);
  }
};

/// The gradients of the intermediate results.
template <typename X>
struct SmallGradients {
  X* query = nullptr;
  X* key = nullptr;
  X* value = nullptr;
  X* weights = nullptr; // (T), of one query
  X* context = nullptr;

  SmallGradients(Parts& parts, const SmallModule<X>& m) {
    const auto T = m.num_tokens;
    query = parts.take<X>(T * m.num_heads * m.head_dim);
    key = parts.take<X>(T * m.num_kv_heads * m.head_dim);
    value = parts.take<X>(T * m.num_kv_heads * m.head_dim);
    weights = parts.take<X>(T);
    context = parts.take<X>(T * m.num_heads * m.head_dim);
  }
};

template <typename X>
Visibility visibility_of(const SmallModule<X>& m) {
  return cpu::visibility_of(m.rule, m.num_tokens, m.num_tokens, /*offset=*/0);
}

/// Computes y (T, out) = x (T, in) W^T + b.
template <typename X>
void project(
    const X* x,
    const Projection<const X*>& p,
    int64_t T,
    int64_t in,
    int64_t out,
    X* y) {
  for (int64_t t = 0; t < T; ++t) {
    for (int64_t i = 0; i < out; ++i) {
      X sum = p.bias != nullptr ? p.bias[i] : X(0);
      for (int64_t j = 0; j < in; ++j) {
        sum += x[t * in + j] * p.weight[i * in + j];
      }
      y[t * out + i] = sum;
    }
  }
}

/// Adds to the gradients of x (T, in), weight (out, in) and bias (out).
template <typename X>
void add_project_gradients(
    const X* x,
    const X* weight,
    const X* grad_y,
    int64_t T,
    int64_t in,
    int64_t out,
    X* grad_x,
    const Projection<X*>& gradients) {
  for (int64_t t = 0; t < T; ++t) {
    for (int64_t i = 0; i < out; ++i) {
      const auto g = grad_y[t * out + i];
      if (gradients.bias != nullptr) {
        gradients.bias[i] += g;
      }
      for (int64_t j = 0; j < in && gradients.weight != nullptr; ++j) {
        gradients.weight[i * in + j] += g * x[t * in + j];
      }
      for (int64_t j = 0; j < in && grad_x != nullptr; ++j) {
        grad_x[t * in + j] += g * weight[i * in + j];
      }
    }
  }
}

/// Computes the scores of one head less the maximum of their row, (T, T).
/// Hidden ones become 0; their exponentials are never read.
template <typename X>
void compute_scores(
    const SmallModule<X>& m,
    const X* query,
    const X* key,
    X* scores) {
  const auto T = m.num_tokens;
  const auto scale = static_cast<X>(m.rule.factor(m.head_dim));
  const auto visibility = visibility_of(m);
  const auto row = m.num_heads * m.head_dim;
  const auto kv_row = m.num_kv_heads * m.head_dim;
  for (int64_t t = 0; t < T; ++t) {
    const auto first = visibility.first(t);
    const auto end = visibility.end(t);
    auto* of_row = scores + t * T;
    X maximum = -kInfinity<X>;
    for (auto s = first; s < end; ++s) {
      X score = 0;
      for (int64_t d = 0; d < m.head_dim; ++d) {
        score += query[t * row + d] * key[s * kv_row + d];
      }
      of_row[s] = score * scale;
      maximum = std::max(maximum, of_row[s]);
    }
    const auto shift = maximum == -kInfinity<X> ? X(0) : maximum;
    for (auto s = first; s < end; ++s) {
      of_row[s] -= shift;
    }
    std::fill(of_row, of_row + first, X(0));
    std::fill(of_row + end, of_row + T, X(0));
  }
}

/// Attends, one step at a time for all rows: reading a vector right after its
/// parts were written one by one would stall.
///
///   reads   query (T, H * D), key and value (T, G * D)
///   writes  weights (H, T, T), context (T, H * D)
///
///   1. Scores of all heads.
///   2. Their exponentials.
///   3. Weights of each query, and their sums of values.
template <typename X>
void attend(const SmallModule<X>& m, const SmallMemory<X>& memory) {
  const auto T = m.num_tokens;
  const auto visibility = visibility_of(m);
  const auto D = m.head_dim;
  const auto row = m.num_heads * D;
  const auto kv_row = m.num_kv_heads * D;
  const auto group = m.num_heads / m.num_kv_heads;
  for (int64_t h = 0; h < m.num_heads; ++h) {
    compute_scores(
        m,
        memory.query + h * D,
        memory.key + h / group * D,
        memory.weights + h * T * T);
  }
  exponentiate(memory.weights, m.num_heads * T * T);
  for (int64_t h = 0; h < m.num_heads; ++h) {
    for (int64_t t = 0; t < T; ++t) {
      auto* weights = memory.weights + (h * T + t) * T;
      const auto first = visibility.first(t);
      const auto end = visibility.end(t);
      X sum = 0;
      for (auto s = first; s < end; ++s) {
        sum += weights[s];
      }
      const auto inverse = sum == 0 ? X(0) : 1 / sum;
      for (auto s = first; s < end; ++s) {
        weights[s] *= inverse;
      }
      add_up(
          weights + first,
          memory.value + first * kv_row + h / group * D,
          kv_row,
          end - first,
          D,
          memory.context + t * row + h * D);
    }
  }
}

/// Computes the gradients of query, key and value from the context's gradient.
///
///   reads   weights (H, T, T), query and gradient of the context (T, H * D),
///           key and value (T, G * D)
///   writes  the gradients of query (T, H * D), key and value (T, G * D)
///
///   1. The gradients are set to 0.
///   2. For each query: the gradients of values and weights.
///   3. The gradients of its scores, and from them those of query and keys.
template <typename X>
void attend_backward(
    const SmallModule<X>& m,
    const SmallMemory<X>& memory,
    const SmallGradients<X>& gradients) {
  const auto T = m.num_tokens;
  const auto scale = static_cast<X>(m.rule.factor(m.head_dim));
  const auto visibility = visibility_of(m);
  const auto D = m.head_dim;
  const auto row = m.num_heads * D;
  const auto kv_row = m.num_kv_heads * D;
  std::fill(gradients.query, gradients.query + T * row, X(0));
  std::fill(gradients.key, gradients.key + T * kv_row, X(0));
  std::fill(gradients.value, gradients.value + T * kv_row, X(0));
  for (int64_t h = 0; h < m.num_heads; ++h) {
    const auto kv = h / (m.num_heads / m.num_kv_heads) * D;
    for (int64_t t = 0; t < T; ++t) {
      const auto* grad_context = gradients.context + t * row + h * D;
      const auto* weights = memory.weights + (h * T + t) * T;
      const auto first = visibility.first(t);
      const auto end = visibility.end(t);
      X mean = 0;
      for (auto s = first; s < end; ++s) {
        const auto* value = memory.value + s * kv_row + kv;
        auto* grad_value = gradients.value + s * kv_row + kv;
        X sum = 0;
        for (int64_t d = 0; d < D; ++d) {
          sum += grad_context[d] * value[d];
          grad_value[d] += weights[s] * grad_context[d];
        }
        gradients.weights[s] = sum;
        mean += weights[s] * sum;
      }
      const auto* query = memory.query + t * row + h * D;
      auto* grad_query = gradients.query + t * row + h * D;
      for (auto s = first; s < end; ++s) {
        const auto grad_score =
            weights[s] * (gradients.weights[s] - mean) * scale;
        const auto* key = memory.key + s * kv_row + kv;
        auto* grad_key = gradients.key + s * kv_row + kv;
        for (int64_t d = 0; d < D; ++d) {
          grad_query[d] += grad_score * key[d];
          grad_key[d] += grad_score * query[d];
        }
      }
    }
  }
}

/// Computes queries, keys, values, weights and context of one sequence.
template <typename X>
void compute_context(
    const SmallModule<X>& m,
    const X* x,
    const SmallMemory<X>& memory) {
  const auto T = m.num_tokens;
  const auto& p = m.projections;
  const auto kv_out = m.num_kv_heads * m.head_dim;
  project(x, p.query, T, m.d_in, m.num_heads * m.head_dim, memory.query);
  project(x, p.key, T, m.d_in, kv_out, memory.key);
  project(x, p.value, T, m.d_in, kv_out, memory.value);
  attend(m, memory);
}

template <typename X>
void clear(const Projection<X*>& p, int64_t in, int64_t out) {
  if (p.weight != nullptr) {
    std::fill(p.weight, p.weight + in * out, X(0));
  }
  if (p.bias != nullptr) {
    std::fill(p.bias, p.bias + out, X(0));
  }
}

template <typename X>
void forward(const SmallModule<X>& m, X* output) {
  Parts count;
  (void)SmallMemory<X>(count, m);
  Parts parts(thread_memory(count.size()));
  const SmallMemory<X> memory(parts, m);
  const auto T = m.num_tokens;
  const auto& out = m.projections.out;
  for (int64_t b = 0; b < m.batch_size; ++b) {
    compute_context(m, m.x + b * T * m.d_in, memory);
    auto* y = output + b * T * m.d_out;
    if (out.weight != nullptr) {
      project(memory.context, out, T, m.num_heads * m.head_dim, m.d_out, y);
    } else {
      std::copy(memory.context, memory.context + T * m.d_out, y);
    }
  }
}

template <typename X>
void backward(
    const SmallModule<X>& m,
    const X* grad_output,
    X* grad_x,
    const Projections<X*>& gradients) {
  const auto T = m.num_tokens;
  const auto in = m.d_in;
  const auto out = m.num_heads * m.head_dim;
  const auto kv_out = m.num_kv_heads * m.head_dim;
  const auto& p = m.projections;
  const auto take = [&](Parts& parts) {
    SmallMemory<X> memory(parts, m);
    SmallGradients<X> gradients_memory(parts, m);
    return std::make_pair(memory, gradients_memory);
  };
  Parts count;
  (void)take(count);
  Parts parts(thread_memory(count.size()));
  const auto [memory, local] = take(parts);
  clear(gradients.query, in, out);
  clear(gradients.key, in, kv_out);
  clear(gradients.value, in, kv_out);
  clear(gradients.out, out, m.d_out);
  if (grad_x != nullptr) {
    std::fill(grad_x, grad_x + m.batch_size * T * in, X(0));
  }
  for (int64_t b = 0; b < m.batch_size; ++b) {
    const auto* x = m.x + b * T * in;
    const auto* grad_y = grad_output + b * T * m.d_out;
    compute_context(m, x, memory);
    if (p.out.weight != nullptr) {
      std::fill(local.context, local.context + T * out, X(0));
      add_project_gradients(
          memory.context,
          p.out.weight,
          grad_y,
          T,
          out,
          m.d_out,
          local.context,
          gradients.out);
    } else {
      std::copy(grad_y, grad_y + T * out, local.context);
    }
    attend_backward(m, memory, local);
    auto* grad = grad_x != nullptr ? grad_x + b * T * in : nullptr;
    const auto add = [&](const X* weight,
                         const X* grad_projected,
                         int64_t size,
                         const Projection<X*>& to) {
      add_project_gradients(x, weight, grad_projected, T, in, size, grad, to);
    };
    add(p.query.weight, local.query, out, gradients.query);
    add(p.key.weight, local.key, kv_out, gradients.key);
    add(p.value.weight, local.value, kv_out, gradients.value);
  }
}

} // namespace HWY_NAMESPACE
} // namespace torch_attention::cpu
HWY_AFTER_NAMESPACE();

#if HWY_ONCE

#include <cpu/dispatch.h>

namespace torch_attention::cpu {

template <typename X>
int64_t work_of(const SmallModule<X>& m) {
  const auto out = m.num_heads * m.head_dim;
  const auto kv_out = m.num_kv_heads * m.head_dim;
  const auto projections = m.d_in * (out + 2 * kv_out) +
      (m.projections.out.weight != nullptr ? out * m.d_out : 0);
  return m.batch_size * m.num_tokens * (projections + 2 * m.num_tokens * out);
}

template <typename X>
void forward(const SmallModule<X>& m, X* output) {
  TORCH_ATTENTION_DISPATCH(forward(m, output));
}

template <typename X>
void backward(
    const SmallModule<X>& m,
    const X* grad_output,
    X* grad_x,
    const Projections<X*>& gradients) {
  TORCH_ATTENTION_DISPATCH(backward(m, grad_output, grad_x, gradients));
}

#define TORCH_ATTENTION_INSTANTIATE(X)              \
  template int64_t work_of(const SmallModule<X>&);  \
  template void forward(const SmallModule<X>&, X*); \
  template void backward(                           \
      const SmallModule<X>&, const X*, X*, const Projections<X*>&);
TORCH_ATTENTION_INSTANTIATE(float)
TORCH_ATTENTION_INSTANTIATE(double)
#undef TORCH_ATTENTION_INSTANTIATE

} // namespace torch_attention::cpu

#endif
