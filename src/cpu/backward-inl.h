// The pass backward: the scores are computed again, tile by tile.

#if defined(TORCH_ATTENTION_CPU_BACKWARD_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef TORCH_ATTENTION_CPU_BACKWARD_INL_H_
#undef TORCH_ATTENTION_CPU_BACKWARD_INL_H_
#else
#define TORCH_ATTENTION_CPU_BACKWARD_INL_H_
#endif

#include <cpu/backward_memory-inl.h>
#include <cpu/packing-inl.h>
#include <cpu/products-inl.h>
#include <cpu/scores-inl.h>
#include <cpu/tasks.h>
#include <cpu/vector-inl.h>
#include <cpu/visibility.h>
#include <cpu/workspace.h>

#include <algorithm>
#include <type_traits>

HWY_BEFORE_NAMESPACE();
namespace torch_attention::cpu {
namespace HWY_NAMESPACE {

/// Scores become the weights that values got, and the gradients of those become
/// the gradients of the scores.
template <int kVectors, bool kCut, bool kDropout, typename T>
HWY_NOINLINE void differentiate_weights(
    const T* maximum,
    const T* inverse_sum,
    const T* delta,
    T* scores,
    T* grad_scores,
    int64_t t,
    int64_t s,
    int64_t n,
    int64_t head,
    const Dropout& dropout) {
  const Tag<T> d;
  constexpr int N = kLanes<T>;
  const auto kept = hn::Set(d, static_cast<T>(dropout.scale()));
  Vector<T> shift[kVectors];
  Vector<T> factor[kVectors];
  Vector<T> mean[kVectors];
  HWY_UNROLL(3)
  for (int v = 0; v < kVectors; ++v) {
    shift[v] = load(d, maximum + v * N);
    factor[v] = load(d, inverse_sum + v * N);
    mean[v] = load(d, delta + v * N);
  }
  // What is hidden stays 0 where all else of its query is NaN.
  const auto unless_hidden = [&](Vector<T> score, Vector<T> x) {
    const auto hidden = hn::Set(d, -kInfinity<T>);
    return kCut ? hn::IfThenZeroElse(hn::Eq(score, hidden), x) : x;
  };
  const auto share_of = [&](Vector<T> score, int v) {
    const auto weight = exp<false, T>(hn::Sub(score, shift[v]));
    return unless_hidden(score, hn::Mul(weight, factor[v]));
  };
  const auto grad_score =
      [&](Vector<T> score, Vector<T> weight, Vector<T> grad, int v) {
        return unless_hidden(score, hn::Mul(weight, hn::Sub(grad, mean[v])));
      };
  if constexpr (!kDropout) {
    for (int64_t i = 0; i < n; ++i) {
      HWY_UNROLL(3)
      for (int v = 0; v < kVectors; ++v) {
        const auto at = (i * kVectors + v) * N;
        const auto score = load(d, scores + at);
        const auto weight = share_of(score, v);
        const auto grad = load(d, grad_scores + at);
        store(weight, d, scores + at);
        store(grad_score(score, weight, grad, v), d, grad_scores + at);
      }
    }
  } else {
    for (int64_t i = 0; i < n; i += 4) {
      HWY_UNROLL(3)
      for (int v = 0; v < kVectors; ++v) {
        const Philox<T> philox(t + v * N, s + i, head, dropout.seed);
        const auto differentiate = [&](auto key) {
          constexpr int kKey = decltype(key)::value;
          if (i + kKey < n) {
            const auto at = ((i + kKey) * kVectors + v) * N;
            const auto keep = [&](Vector<T> x) {
              return philox.template keep<kKey>(x, dropout.threshold);
            };
            const auto score = load(d, scores + at);
            const auto weight = share_of(score, v);
            const auto grad = keep(load(d, grad_scores + at));
            store(keep(hn::Mul(weight, kept)), d, scores + at);
            store(grad_score(score, weight, grad, v), d, grad_scores + at);
          }
        };
        differentiate(std::integral_constant<int, 0>());
        differentiate(std::integral_constant<int, 1>());
        differentiate(std::integral_constant<int, 2>());
        differentiate(std::integral_constant<int, 3>());
      }
    }
  }
}

template <typename X, typename T = Compute<X>>
T dot(const X* x, const X* y, int64_t n) {
  const Tag<T> d;
  constexpr int N = kLanes<T>;
  auto sums = hn::Zero(d);
  int64_t i = 0;
  for (; i + N <= n; i += N) {
    sums = hn::MulAdd(load(d, x + i), load(d, y + i), sums);
  }
  auto sum = hn::GetLane(hn::SumOfLanes(d, sums));
  for (; i < n; ++i) {
    sum += get(x + i) * get(y + i);
  }
  return sum;
}

/// to[r][i] = from[i][r] for rows of `width` and `to_row` numbers.
template <typename T>
void store_transposed(
    const T* from,
    int64_t width,
    int64_t n,
    int64_t rows,
    T* to,
    int64_t to_row) {
  for (int64_t r = 0; r < rows; ++r) {
    for (int64_t i = 0; i < n; ++i) {
      to[r * to_row + i] = from[i * width + r];
    }
  }
}

/// Where a task adds the gradients of one query head.
template <typename T>
struct HeadGradients {
  /// itself, or a copy
  T* query = nullptr;
  int64_t query_row = 0;
  /// of its slope; null: not asked for
  double* slope = nullptr;
};

/// One tile of queries against one chunk of keys [s, s_end).
template <int kVectors, typename X, typename T>
void differentiate_tile(
    const AttentionArguments<X>& a,
    const BackwardArguments<X>& gradients,
    const Head<X>& head,
    int64_t b,
    int64_t h,
    int64_t t,
    int64_t rows,
    int64_t s,
    int64_t s_end,
    const HeadGradients<T>& to_add,
    BackwardMemory<T>& m) {
  constexpr int64_t kWidth = kVectors * kLanes<T>;
  const auto& visibility = head.visibility;
  const auto D = round_up_to_lanes<T>(a.head_dim);
  const auto E = round_up_to_lanes<T>(a.value_dim);
  const auto dropout = dropout_of(a);
  const auto scale = static_cast<T>(a.scale);

  // The tile of queries, both ways round.
  const auto query_row = a.query.strides.token;
  const auto* query = head.query + t * query_row;
  const auto grad_row = gradients.grad_output.strides.token;
  const auto* grad_output = at(gradients.grad_output, b, h) + t * grad_row;
  const auto output_row = gradients.output.strides.token;
  const auto* output = at(gradients.output, b, h) + t * output_row;
  pack_transposed(
      query, query_row, rows, a.head_dim, scale, m.query_lanes, kWidth);
  pack_transposed(
      grad_output,
      grad_row,
      rows,
      a.value_dim,
      static_cast<T>(dropout.scale()),
      m.grad_output_lanes,
      kWidth);
  bool finite = m.finite_keys;
  finite &=
      pack_rows(query, query_row, rows, a.head_dim, scale, m.query_rows, D);
  finite &= pack_rows(
      grad_output, grad_row, rows, a.value_dim, T(1), m.grad_output_rows, E);
  fill(m.maximum, kWidth, T(0));
  fill(m.inverse_sum, kWidth, T(0));
  fill(m.delta, kWidth, T(0));
  const auto first_row = head.index * a.num_queries + t;
  for (int64_t r = 0; r < rows; ++r) {
    const auto sum = gradients.statistics.sum[first_row + r];
    m.maximum[r] = gradients.statistics.maximum[first_row + r];
    m.inverse_sum[r] = sum == 0 ? T(0) : 1 / sum;
    m.delta[r] =
        dot(output + r * output_row, grad_output + r * grad_row, a.value_dim);
  }

  if (to_add.slope != nullptr) {
    fill(m.distances, kWidth, T(0));
  }

  const auto end = std::min(s_end, visibility.end(t + rows - 1));
  bool started = false;
  for (auto block = s; block < end; block += kKeyBlock) {
    const auto begin = std::max(block, visibility.first(t) / 4 * 4);
    const auto n = std::min(block + kKeyBlock, end) - begin;
    if (n <= 0) {
      continue;
    }
    const auto verdict = visibility.tile(t, t + rows, begin, begin + n);
    if (verdict == Tile::kSkipped) {
      continue;
    }
    const auto added = added_to_tile(
        a, head, t, rows, begin, n, kWidth, m.added_rows, m.added_tile);
    if (added.hides_all) {
      continue;
    }
    const bool cut = verdict == Tile::kCut || added.data != nullptr ||
        shapes_scores(a) || !finite;
    const auto* key = m.key + (begin - s) * D;
    const auto* value = m.value + (begin - s) * E;
    multiply_scores<Product<Start::kZero>, kVectors>(
        key,
        D,
        n,
        m.query_lanes,
        kWidth,
        a.head_dim,
        m.scores,
        static_cast<T*>(nullptr));
    multiply_scores<Product<Start::kZero>, kVectors>(
        value,
        E,
        n,
        m.grad_output_lanes,
        kWidth,
        a.value_dim,
        m.grad_scores,
        static_cast<T*>(nullptr));
    if (a.softcap > 0) {
      cap_scores(a.softcap, n * kWidth, m.scores, m.cap_derivative);
    }
    if (cut) {
      hide_scores<kVectors>(
          visibility,
          head.alibi_slope,
          t,
          begin,
          n,
          added,
          m.scores,
          static_cast<T*>(nullptr));
    }
    const auto differentiate = dropout.threshold > 0
        ? (cut ? differentiate_weights<kVectors, true, true, T>
               : differentiate_weights<kVectors, false, true, T>)
        : (cut ? differentiate_weights<kVectors, true, false, T>
               : differentiate_weights<kVectors, false, false, T>);
    differentiate(
        m.maximum,
        m.inverse_sum,
        m.delta,
        m.scores,
        m.grad_scores,
        t,
        begin,
        n,
        head.index,
        dropout);
    if (a.num_keys == 1) {
      // The weight of a single key is 1 whatever its score: no rounding noise.
      scale_by_0(n * kWidth, m.grad_scores);
    }
    if (to_add.slope != nullptr) {
      add_distances<kVectors>(
          visibility, t, begin, n, m.grad_scores, m.distances);
    }
    if (gradients.grad_bias != nullptr) {
      const auto first = (head.index * a.num_queries + t) * a.num_keys + begin;
      store_transposed(
          m.grad_scores,
          kWidth,
          n,
          rows,
          gradients.grad_bias + first,
          a.num_keys);
    }
    if (a.softcap > 0) {
      uncap_gradients(m.cap_derivative, n * kWidth, m.grad_scores);
    }

    const bool skip = !finite;
    const auto add_features = skip
        ? multiply_features<Product<Start::kLoad, Skip::kZeroBroadcast>, T, T>
        : multiply_features<Product<Start::kLoad>, T, T>;
    add_features(
        m.scores,
        kWidth,
        n,
        m.grad_output_rows,
        E,
        rows,
        m.grad_value + (begin - s) * E,
        E);
    add_features(
        m.grad_scores,
        kWidth,
        n,
        m.query_rows,
        D,
        rows,
        m.grad_key + (begin - s) * D,
        D);
    using First = Product<Start::kZero>;
    using FirstCareful = Product<Start::kZero, Skip::kZeroVector>;
    using Next = Product<Start::kLoad>;
    using NextCareful = Product<Start::kLoad, Skip::kZeroVector>;
    const auto add_query = started
        ? (skip ? multiply_output<NextCareful, kVectors, T>
                : multiply_output<Next, kVectors, T>)
        : (skip ? multiply_output<FirstCareful, kVectors, T>
                : multiply_output<First, kVectors, T>);
    add_query(
        key,
        D,
        a.head_dim,
        m.grad_scores,
        n,
        m.grad_query_lanes,
        kWidth,
        static_cast<const T*>(nullptr));
    started = true;
  }
  if (!started) {
    return;
  }
  fill(m.scale, kWidth, scale);
  unpack_transposed(
      m.grad_query_lanes,
      kWidth,
      rows,
      a.head_dim,
      m.scale,
      m.grad_query_rows,
      D);
  for (int64_t r = 0; r < rows; ++r) {
    auto* to = to_add.query + (t + r) * to_add.query_row;
    const auto* from = m.grad_query_rows + r * D;
    store_each<T>(to, a.head_dim, [&](int64_t c, auto tag) {
      return hn::Add(load(tag, to + c), load(tag, from + c));
    });
  }
  for (int64_t r = 0; to_add.slope != nullptr && r < rows; ++r) {
    *to_add.slope -= static_cast<double>(m.distances[r]);
  }
}

template <typename T, typename X>
void store_rows(
    const T* from,
    int64_t from_row,
    int64_t rows,
    int64_t columns,
    X* to,
    int64_t to_row) {
  for (int64_t r = 0; r < rows; ++r) {
    const auto* row = from + r * from_row;
    store_each<T>(to + r * to_row, columns, [&](int64_t c, auto d) {
      return load(d, row + c);
    });
  }
}

/// Keys [s, s_end) of one key/value head, against all queries.
template <typename X, typename GradientsOf, typename T>
void differentiate_chunk(
    const AttentionArguments<X>& a,
    const BackwardArguments<X>& gradients,
    int64_t b,
    int64_t g,
    int64_t s,
    int64_t s_end,
    const GradientsOf& gradients_of,
    BackwardMemory<T>& m) {
  constexpr int64_t W = kMaxTileQueries<T>;
  const auto D = round_up_to_lanes<T>(a.head_dim);
  const auto E = round_up_to_lanes<T>(a.value_dim);
  const auto group = a.num_heads / a.num_kv_heads;
  const auto visibility = visibility_of(a, b);
  const auto n = s_end - s;
  // Beyond the length nothing is read.
  const auto seen = std::min(s_end, visibility.num_keys) - s;
  m.finite_keys = true;
  if (seen > 0) {
    const auto key_row = a.key.strides.token;
    const auto value_row = a.value.strides.token;
    m.finite_keys &= pack_rows(
        at(a.key, b, g) + s * key_row,
        key_row,
        seen,
        a.head_dim,
        T(1),
        m.key,
        D);
    m.finite_keys &= pack_rows(
        at(a.value, b, g) + s * value_row,
        value_row,
        seen,
        a.value_dim,
        T(1),
        m.value,
        E);
  }
  fill(m.grad_key, n * D, T(0));
  fill(m.grad_value, n * E, T(0));
  for (auto h = g * group; seen > 0 && h < (g + 1) * group; ++h) {
    const auto head = head_at(a, b, h);
    const auto to_add = gradients_of(h);
    for (int64_t t = 0; t < a.num_queries; t += W) {
      const auto rows = std::min(W, a.num_queries - t);
      if (visibility.tile(t, t + rows, s, s + seen) == Tile::kSkipped) {
        continue;
      }
      with_constant<kMaxVectors>(
          static_cast<int>((rows + kLanes<T> - 1) / kLanes<T>),
          [&](auto vectors) {
            differentiate_tile<decltype(vectors)::value>(
                a, gradients, head, b, h, t, rows, s, s + seen, to_add, m);
          });
    }
  }
  const auto& grad_key = gradients.grad_key;
  const auto& grad_value = gradients.grad_value;
  store_rows(
      m.grad_key,
      D,
      n,
      a.head_dim,
      at(grad_key, b, g) + s * grad_key.strides.token,
      grad_key.strides.token);
  store_rows(
      m.grad_value,
      E,
      n,
      a.value_dim,
      at(grad_value, b, g) + s * grad_value.strides.token,
      grad_value.strides.token);
}

template <typename T>
void zero_rows(T* to, int64_t to_row, int64_t rows, int64_t columns) {
  for (int64_t r = 0; r < rows; ++r) {
    std::fill(to + r * to_row, to + r * to_row + columns, T(0));
  }
}

template <typename X>
void backward(
    const AttentionArguments<X>& a,
    const BackwardArguments<X>& gradients,
    const Threads& threads) {
  using T = Compute<X>;
  const auto plan = backward_plan(a);
  const auto heads = a.batch_size * a.num_kv_heads;
  const auto group = a.num_heads / a.num_kv_heads;
  const auto head_size = a.num_queries * a.head_dim;
  const auto copy_size = a.batch_size * a.num_heads * head_size;
  const auto& grad_query = gradients.grad_query;
  // What each split adds to. The first adds to the gradient itself, if that is
  // as exact as sums should be.
  constexpr bool kFirstIsItself = std::is_same_v<X, T>;
  const auto num_copies = plan.splits - (kFirstIsItself ? 1 : 0);
  const auto num_slopes = a.batch_size * a.num_heads;
  AlignedMemory memory_of_copies;
  T* copies = nullptr;
  double* slopes = nullptr; // (splits, B, H)
  const auto take = [&](Parts& parts) {
    copies = parts.take<T>(num_copies * copy_size);
    if (gradients.grad_alibi_slopes != nullptr) {
      slopes = parts.take<double>(plan.splits * num_slopes);
    }
  };
  Parts needed;
  take(needed);
  if (needed.size() > 0) {
    memory_of_copies = allocate(needed.size());
    Parts parts(memory_of_copies.get());
    take(parts);
  }
  run_tasks(threads, heads * plan.splits, [&](int64_t i) {
    // Under a causal mask the first keys are those that most queries see.
    const auto split = i / heads;
    const auto b = i % heads / a.num_kv_heads;
    const auto g = i % a.num_kv_heads;
    const auto gradients_of = [&](int64_t h) -> HeadGradients<T> {
      const auto head = b * a.num_heads + h;
      auto* slope =
          slopes != nullptr ? slopes + split * num_slopes + head : nullptr;
      auto copy = split;
      if constexpr (kFirstIsItself) {
        if (split == 0) {
          return {at(grad_query, b, h), grad_query.strides.token, slope};
        }
        --copy;
      }
      return {copies + copy * copy_size + head * head_size, a.head_dim, slope};
    };
    for (auto h = g * group; h < (g + 1) * group; ++h) {
      const auto to = gradients_of(h);
      zero_rows(to.query, to.query_row, a.num_queries, a.head_dim);
      if (to.slope != nullptr) {
        *to.slope = 0;
      }
    }
    Parts count;
    (void)BackwardMemory<T>(count, a, plan);
    Parts parts(thread_memory(count.size()));
    BackwardMemory<T> memory(parts, a, plan);
    const auto end = std::min((split + 1) * plan.split_keys, a.num_keys);
    for (auto s = split * plan.split_keys; s < end; s += plan.chunk_keys) {
      differentiate_chunk(
          a,
          gradients,
          b,
          g,
          s,
          std::min(s + plan.chunk_keys, end),
          gradients_of,
          memory);
    }
  });
  for (int64_t h = 0; slopes != nullptr && h < a.num_heads; ++h) {
    double sum = 0;
    for (auto i = h; i < plan.splits * num_slopes; i += a.num_heads) {
      sum += slopes[i];
    }
    gradients.grad_alibi_slopes[h] = static_cast<T>(sum);
  }
  if (num_copies == 0) {
    return;
  }
  constexpr int64_t kRows = 64;
  const auto parts = (a.num_queries + kRows - 1) / kRows;
  run_tasks(threads, a.batch_size * a.num_heads * parts, [&](int64_t i) {
    const auto head = i / parts;
    const auto first = i % parts * kRows;
    auto* to = at(grad_query, head / a.num_heads, head % a.num_heads);
    for (auto t = first; t < std::min(first + kRows, a.num_queries); ++t) {
      auto* row = to + t * grad_query.strides.token;
      const auto* from = copies + head * head_size + t * a.head_dim;
      store_each<T>(row, a.head_dim, [&](int64_t c, auto d) {
        auto sum = kFirstIsItself ? load(d, row + c) : hn::Zero(d);
        for (int64_t copy = 0; copy < num_copies; ++copy) {
          sum = hn::Add(sum, load(d, from + copy * copy_size + c));
        }
        return sum;
      });
    }
  });
}

} // namespace HWY_NAMESPACE
} // namespace torch_attention::cpu
HWY_AFTER_NAMESPACE();

#if HWY_ONCE

#include <cpu/dispatch.h>

namespace torch_attention::cpu {

template <typename X>
void backward(
    const AttentionArguments<X>& arguments,
    const BackwardArguments<X>& gradients,
    const Threads& threads) {
  if (arguments.batch_size == 0 || arguments.num_heads == 0) {
    if (gradients.grad_alibi_slopes != nullptr) {
      std::fill_n(
          gradients.grad_alibi_slopes, arguments.num_heads, Compute<X>(0));
    }
    return;
  }
  TORCH_ATTENTION_DISPATCH(backward(arguments, gradients, threads));
}

} // namespace torch_attention::cpu

#endif // HWY_ONCE

#endif
