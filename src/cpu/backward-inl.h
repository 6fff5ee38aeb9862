// The pass backward: the scores are computed again, tile by tile.

#if defined(TORCH_ATTENTION_CPU_BACKWARD_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef TORCH_ATTENTION_CPU_BACKWARD_INL_H_
#undef TORCH_ATTENTION_CPU_BACKWARD_INL_H_
#else
#define TORCH_ATTENTION_CPU_BACKWARD_INL_H_
#endif

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

/// How `backward` divides its work. Depends on sizes only, not on threads.
///
/// A task takes a range of keys of one key/value head through all queries that
/// see them: five products for each tile, and the gradients of key and value
/// need no other task. That of query does: where there are too few heads to go
/// around, each range adds to a copy of its own, summed at the end. (Passes of
/// their own for query and key gradients would need no copies, but seven
/// products.)
struct BackwardPlan {
  /// keys of a task
  int64_t split_keys = 0;
  int64_t splits = 1;
  /// keys whose gradients stay in the level 2 cache
  int64_t chunk_keys = 0;
};

template <typename X, typename T = Compute<X>>
BackwardPlan backward_plan(const AttentionArguments<X>& a) {
  constexpr int64_t kEnoughTasks = 64;
  constexpr int64_t kMaxSplits = 16; // bounds the memory
  constexpr int64_t kMinSplitKeys = 128;
  constexpr int64_t kChunkBytes = 512 * 1024;
  const auto ceil_div = [](int64_t n, int64_t d) { return (n + d - 1) / d; };
  const auto blocks_of = [&](int64_t keys) {
    return ceil_div(keys, kKeyBlock) * kKeyBlock;
  };
  BackwardPlan plan;
  const auto heads = a.batch_size * a.num_kv_heads;
  const auto splits = std::clamp<int64_t>(
      std::min(ceil_div(kEnoughTasks, heads), a.num_keys / kMinSplitKeys),
      1,
      kMaxSplits);
  plan.split_keys =
      std::max(kKeyBlock, blocks_of(ceil_div(a.num_keys, splits)));
  plan.splits = std::max<int64_t>(1, ceil_div(a.num_keys, plan.split_keys));
  const auto key_bytes =
      2 * (a.head_dim + a.value_dim) * static_cast<int64_t>(sizeof(T));
  plan.chunk_keys = std::min(
      plan.split_keys,
      std::max(kKeyBlock, kChunkBytes / key_bytes / kKeyBlock * kKeyBlock));
  return plan;
}

template <typename T>
struct BackwardMemory {
  // Of a chunk of keys; D and E padded to vectors
  T* key = nullptr; // (chunk, D)
  T* value = nullptr; // (chunk, E)
  T* grad_key = nullptr; // (chunk, D)
  T* grad_value = nullptr; // (chunk, E)
  // Of a tile of queries
  T* query_lanes = nullptr; // (D, width), scaled
  T* grad_output_lanes = nullptr; // (E, width), scaled by what dropout keeps
  T* query_rows = nullptr; // (width, D), scaled
  T* grad_output_rows = nullptr; // (width, E)
  T* grad_query_lanes = nullptr; // (D, width)
  T* grad_query_rows = nullptr; // (width, D)
  T* maximum = nullptr; // (width), of the scores
  T* inverse_sum = nullptr; // (width), of the weights
  T* delta = nullptr; // (width), sum of output * grad_output
  T* scale = nullptr; // (width)
  // Of both
  T* scores = nullptr; // (kKeyBlock, width), then the weights
  T* grad_scores = nullptr; // (kKeyBlock, width)
  T* cap_derivative = nullptr; // (kKeyBlock, width)
  T* added_rows = nullptr; // (width, kKeyBlock)
  T* added_tile = nullptr; // (kKeyBlock, width)
  bool finite_keys = true;

  template <typename X>
  BackwardMemory(
      Parts& parts,
      const AttentionArguments<X>& a,
      const BackwardPlan& plan) {
    constexpr int64_t W = kMaxTileQueries<T>;
    const auto D = round_up_to_lanes<T>(a.head_dim);
    const auto E = round_up_to_lanes<T>(a.value_dim);
    key = parts.take<T>(plan.chunk_keys * D);
    value = parts.take<T>(plan.chunk_keys * E);
    grad_key = parts.take<T>(plan.chunk_keys * D);
    grad_value = parts.take<T>(plan.chunk_keys * E);
    query_lanes = parts.take<T>(D * W);
    grad_output_lanes = parts.take<T>(E * W);
    query_rows = parts.take<T>(W * D);
    grad_output_rows = parts.take<T>(W * E);
    grad_query_lanes = parts.take<T>(D * W);
    grad_query_rows = parts.take<T>(W * D);
    maximum = parts.take<T>(W);
    inverse_sum = parts.take<T>(W);
    delta = parts.take<T>(W);
    scale = parts.take<T>(W);
    scores = parts.take<T>(kKeyBlock * W);
    grad_scores = parts.take<T>(kKeyBlock * W);
    if (a.softcap > 0) {
      cap_derivative = parts.take<T>(kKeyBlock * W);
    }
    if (a.bias.data != nullptr || a.mask.data != nullptr) {
      added_rows = parts.take<T>(W * kKeyBlock);
      added_tile = parts.take<T>(kKeyBlock * W);
    }
  }
};

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
  const auto weight_of = [&](Vector<T> score, int v) {
    return hn::Mul(exp<kCut, T>(hn::Sub(score, shift[v])), factor[v]);
  };
  const auto grad_score = [&](Vector<T> weight, Vector<T> grad, int v) {
    const auto x = hn::Mul(weight, hn::Sub(grad, mean[v]));
    // What is hidden may be NaN.
    return kCut ? hn::IfThenZeroElse(hn::Eq(weight, hn::Zero(d)), x) : x;
  };
  if constexpr (!kDropout) {
    for (int64_t i = 0; i < n; ++i) {
      HWY_UNROLL(3)
      for (int v = 0; v < kVectors; ++v) {
        const auto at = (i * kVectors + v) * N;
        const auto weight = weight_of(load(d, scores + at), v);
        const auto grad = load(d, grad_scores + at);
        store(weight, d, scores + at);
        store(grad_score(weight, grad, v), d, grad_scores + at);
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
            const auto weight = weight_of(load(d, scores + at), v);
            const auto grad = keep(load(d, grad_scores + at));
            store(keep(hn::Mul(weight, kept)), d, scores + at);
            store(grad_score(weight, grad, v), d, grad_scores + at);
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

/// Where a task adds the gradient of one query head: itself, or a copy.
template <typename T>
struct GradQuery {
  T* data = nullptr;
  int64_t row = 0;
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
    const GradQuery<T>& grad_query,
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
    const bool cut =
        verdict == Tile::kCut || added.data != nullptr || shapes_scores(a);
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
    if (a.softcap > 0) {
      uncap_gradients(m.cap_derivative, n * kWidth, m.grad_scores);
    }

    const bool skip = cut && !finite;
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
    auto* to = grad_query.data + (t + r) * grad_query.row;
    const auto* from = m.grad_query_rows + r * D;
    store_each<T>(to, a.head_dim, [&](int64_t c, auto tag) {
      return hn::Add(load(tag, to + c), load(tag, from + c));
    });
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
template <typename X, typename GradQueryOf, typename T>
void differentiate_chunk(
    const AttentionArguments<X>& a,
    const BackwardArguments<X>& gradients,
    int64_t b,
    int64_t g,
    int64_t s,
    int64_t s_end,
    const GradQueryOf& grad_query_of,
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
    const auto grad_query = grad_query_of(h);
    for (int64_t t = 0; t < a.num_queries; t += W) {
      const auto rows = std::min(W, a.num_queries - t);
      if (visibility.tile(t, t + rows, s, s + seen) == Tile::kSkipped) {
        continue;
      }
      with_constant<kMaxVectors>(
          static_cast<int>((rows + kLanes<T> - 1) / kLanes<T>),
          [&](auto vectors) {
            differentiate_tile<decltype(vectors)::value>(
                a, gradients, head, b, h, t, rows, s, s + seen, grad_query, m);
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
  AlignedMemory memory_of_copies;
  T* copies = nullptr;
  if (num_copies > 0) {
    memory_of_copies =
        allocate(static_cast<size_t>(num_copies * copy_size) * sizeof(T));
    copies = reinterpret_cast<T*>(memory_of_copies.get());
  }
  run_tasks(threads, heads * plan.splits, [&](int64_t i) {
    // Under a causal mask the first keys are those that most queries see.
    const auto split = i / heads;
    const auto b = i % heads / a.num_kv_heads;
    const auto g = i % a.num_kv_heads;
    const auto grad_query_of = [&](int64_t h) -> GradQuery<T> {
      auto copy = split;
      if constexpr (kFirstIsItself) {
        if (split == 0) {
          return {at(grad_query, b, h), grad_query.strides.token};
        }
        --copy;
      }
      return {
          copies + copy * copy_size + (b * a.num_heads + h) * head_size,
          a.head_dim};
    };
    for (auto h = g * group; h < (g + 1) * group; ++h) {
      const auto to = grad_query_of(h);
      zero_rows(to.data, to.row, a.num_queries, a.head_dim);
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
          grad_query_of,
          memory);
    }
  });
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
    return;
  }
  TORCH_ATTENTION_DISPATCH(backward(arguments, gradients, threads));
}

} // namespace torch_attention::cpu

#endif // HWY_ONCE

#endif
