// The backward pass of one tile of queries.

#if defined(TORCH_ATTENTION_CPU_BACKWARD_TILE_INL_H_) == \
    defined(HWY_TARGET_TOGGLE)
#ifdef TORCH_ATTENTION_CPU_BACKWARD_TILE_INL_H_
#undef TORCH_ATTENTION_CPU_BACKWARD_TILE_INL_H_
#else
#define TORCH_ATTENTION_CPU_BACKWARD_TILE_INL_H_
#endif

#include <cpu/added-inl.h>
#include <cpu/backward_memory-inl.h>
#include <cpu/conversion-inl.h>
#include <cpu/dropout-inl.h>
#include <cpu/head.h>
#include <cpu/math-inl.h>
#include <cpu/packing-inl.h>
#include <cpu/products-inl.h>
#include <cpu/scores-inl.h>
#include <cpu/vector-inl.h>

#include <algorithm>
#include <type_traits>

HWY_BEFORE_NAMESPACE();
namespace torch_attention::cpu {
namespace HWY_NAMESPACE {

/// Turns scores into weights (after dropout), and gradients of weights into
/// gradients of scores.
template <int kVectors, bool kCut, bool kDropout, typename T>
HWY_NOINLINE void differentiate_weights(
    const Range& range,
    int64_t head,
    const Dropout& dropout,
    const BackwardMemory<T>& m) {
  const Tag<T> d;
  constexpr int N = kLanes<T>;
  const auto t = range.t;
  const auto s = range.s;
  const auto n = range.n;
  auto* scores = m.scores;
  auto* grad_scores = m.grad_scores;
  const auto kept = hn::Set(d, static_cast<T>(dropout.scale()));
  Vector<T> shift[kVectors];
  Vector<T> factor[kVectors];
  Vector<T> mean[kVectors];
  HWY_UNROLL(3)
  for (int v = 0; v < kVectors; ++v) {
    shift[v] = load(d, m.maximum + v * N);
    factor[v] = load(d, m.inverse_sum + v * N);
    mean[v] = load(d, m.delta + v * N);
  }
  // Gradients of hidden keys stay 0 where all others of their query are NaN.
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
        const Philox<T> philox(dropout, t + v * N, s + i, head);
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

/// The memory to which a task adds the gradients of one query head, or of the
/// heads of its tiles.
template <typename T>
struct HeadGradients {
  /// the gradient itself, or a copy
  Rows<T> query;
  /// of the heads' slopes; null: not requested
  double* slopes = nullptr;
};

/// Packs queries and gradients of outputs of a tile, as rows and on lanes, and
/// its softmax statistics. Returns whether the queries and gradients are
/// finite.
template <int kVectors, typename X, typename T>
bool load_tile(
    const AttentionArguments<X>& a,
    const BackwardArguments<X>& gradients,
    const Head<X>& head,
    int64_t t,
    int64_t rows,
    BackwardMemory<T>& m) {
  constexpr int64_t kWidth = kVectors * kLanes<T>;
  const auto D = round_up_to_lanes<T>(a.head_dim);
  const auto E = round_up_to_lanes<T>(a.value_dim);
  const auto query = head.rows_of(a.query);
  const auto output = head.rows_of(gradients.output);
  const auto grad_output = head.rows_of(gradients.grad_output);
  bool finite =
      pack_rows(query, t, rows, a.head_dim, Unscaled(), m.query_rows, D);
  finite &= pack_rows(
      grad_output, t, rows, a.value_dim, Unscaled(), m.grad_output_rows, E);
  // Scaled numbers may not fit bfloat16: with pairs the products are scaled.
  const bool pairs = multiplies_pairs<X>();
  pack_transposed(
      query,
      t,
      rows,
      a.head_dim,
      pairs ? T(1) : head.rule.scale,
      m.query_lanes,
      kWidth);
  pack_transposed(
      grad_output,
      t,
      rows,
      a.value_dim,
      pairs ? T(1) : static_cast<T>(dropout_of(a).scale()),
      m.grad_output_lanes,
      kWidth);
  if constexpr (kHasPairs<X>) {
    if (pairs) {
      pair_rows(m.query_lanes, a.head_dim, kWidth, m.query_lanes);
      pair_rows(m.grad_output_lanes, a.value_dim, kWidth, m.grad_output_lanes);
      pair_rows(m.query_rows, rows, D, m.query_row_pairs);
      pair_rows(m.grad_output_rows, rows, E, m.grad_output_row_pairs);
    }
  }
  fill(m.maximum, kWidth, T(0));
  fill(m.inverse_sum, kWidth, T(0));
  fill(m.delta, kWidth, T(0));
  for (int64_t r = 0; r < rows; ++r) {
    const auto row = head.row_index(t + r, a.num_queries);
    const auto sum = gradients.statistics.sum[row];
    m.maximum[r] = gradients.statistics.maximum[row];
    m.inverse_sum[r] = sum == 0 ? T(0) : 1 / sum;
    m.delta[r] = dot(output.at(t + r), grad_output.at(t + r), a.value_dim);
  }
  return finite;
}

/// Computes the scores (n, width) of a block of keys again, and the gradients
/// of their weights. `cut`: the products are not yet the scores.
template <int kVectors, typename X, typename T>
void compute_again(
    const AttentionArguments<X>& a,
    const Head<X>& head,
    const Range& range,
    const Added<T>& added,
    bool cut,
    const BackwardMemory<T>& m) {
  constexpr int64_t kWidth = kVectors * kLanes<T>;
  const auto first = range.s - m.first_key;
  // key or value (chunk, row) times lanes (n, width)
  const auto multiply = [&](auto product,
                            const T* from,
                            int64_t row,
                            const T* lanes,
                            int64_t n,
                            T factor,
                            T* to) {
    multiply_scores<decltype(product), kVectors>(
        Broadcast<T>{from + first * row, row, 1},
        range.n,
        lanes,
        kWidth,
        n,
        to,
        Lanes<T>{nullptr, nullptr, factor});
  };
  using Plain = Product<Start::kZero>;
  const auto D = round_up_to_lanes<T>(a.head_dim);
  const auto E = round_up_to_lanes<T>(a.value_dim);
  const auto& lanes = m.query_lanes;
  const auto& grad_lanes = m.grad_output_lanes;
  if constexpr (kHasPairs<X>) {
    if (multiplies_pairs<X>()) {
      using Pairs = PairProduct<Plain, /*kFactor=*/true>;
      const auto scale = head.rule.scale;
      const auto kept = static_cast<T>(dropout_of(a).scale());
      multiply(
          Pairs(),
          m.key_columns,
          m.key_columns_row,
          lanes,
          num_pairs(a.head_dim),
          scale,
          m.scores);
      multiply(
          Pairs(),
          m.value_columns,
          m.value_columns_row,
          grad_lanes,
          num_pairs(a.value_dim),
          kept,
          m.grad_scores);
    }
  }
  if (!multiplies_pairs<X>()) {
    multiply(Plain(), m.key, D, lanes, a.head_dim, T(1), m.scores);
    multiply(Plain(), m.value, E, grad_lanes, a.value_dim, T(1), m.grad_scores);
  }
  transform_scores(head.rule, range.n * kWidth, m.scores, m.derivative);
  if (cut) {
    place_scores<kVectors>(
        head.rule,
        head.visibility,
        range,
        added,
        m.scores,
        static_cast<T*>(nullptr));
  }
}

/// Turns the gradients of the softmax's inputs into gradients of the raw
/// scores. Collects the gradients of slopes and bias.
template <int kVectors, typename X, typename T>
void differentiate_rule(
    const AttentionArguments<X>& a,
    const BackwardArguments<X>& gradients,
    const Head<X>& head,
    const Range& range,
    const BackwardMemory<T>& m) {
  constexpr int64_t kWidth = kVectors * kLanes<T>;
  if (a.num_keys == 1 && a.sinks == nullptr) {
    // The weight of a single key is 1 whatever its score: no rounding noise.
    scale_by_0(range.n * kWidth, m.grad_scores);
  }
  if (gradients.grad_alibi_slopes != nullptr) {
    add_distances<kVectors>(
        head.rule,
        head.visibility,
        range,
        /*adds_up_to_0=*/a.sinks == nullptr,
        m.grad_scores,
        m.distances);
  }
  const auto& grad_bias = gradients.grad_bias;
  for (int64_t r = 0; grad_bias.data != nullptr && r < range.rows; ++r) {
    auto* row = at(grad_bias, head.b, head.h) +
        head.offset(grad_bias, range.t + r) + range.s;
    for (int64_t i = 0; i < range.n; ++i) {
      row[i] = m.grad_scores[i * kWidth + r];
    }
  }
  if (!head.rule.linear) {
    multiply_by_derivative(m.derivative, range.n * kWidth, m.grad_scores);
  }
}

/// The forms of products that add up gradients.
template <bool kPairs, bool kNanSafe>
struct Products {
  static constexpr bool kInPairs = kPairs;
  static constexpr auto kBroadcast =
      kNanSafe ? Skip::kZeroBroadcast : Skip::kNothing;
  static constexpr auto kVector = kNanSafe ? Skip::kZeroVector : Skip::kNothing;

  template <Start kStart, Skip kSkip>
  using Of = std::conditional_t<
      kPairs,
      PairProduct<Product<kStart, kSkip>>,
      Product<kStart, kSkip>>;
};

/// Adds the share of one block of keys to the gradients of query, key and
/// value. `nan_safe`: leaves out hidden keys; `started`: the gradient of query
/// holds a sum already.
template <int kVectors, typename X, typename T>
void add_gradients(
    const AttentionArguments<X>& a,
    const Range& range,
    bool nan_safe,
    bool started,
    const BackwardMemory<T>& m) {
  constexpr int64_t kWidth = kVectors * kLanes<T>;
  const auto D = round_up_to_lanes<T>(a.head_dim);
  const auto E = round_up_to_lanes<T>(a.value_dim);
  const auto first = range.s - m.first_key;
  // scores (n, row) times grad_output_rows, grad_scores times query_rows
  const auto add = [&](auto product,
                       int64_t row,
                       const T* grad_output_rows,
                       const T* query_rows,
                       int64_t num_queries) {
    multiply_features<decltype(product)>(
        m.scores,
        row,
        range.n,
        grad_output_rows,
        E,
        num_queries,
        m.grad_value + first * E,
        E);
    multiply_features<decltype(product)>(
        m.grad_scores,
        row,
        range.n,
        query_rows,
        D,
        num_queries,
        m.grad_key + first * D,
        D);
  };
  const auto add_query =
      [&](auto product, const T* key, const T* grad_scores, int64_t num_keys) {
        multiply_output<decltype(product), kVectors>(
            Broadcast<T>{key, 1, D},
            a.head_dim,
            grad_scores,
            num_keys,
            m.grad_query_lanes,
            kWidth,
            static_cast<const T*>(nullptr));
      };
  const auto add_by = [&](auto form) {
    using Form = decltype(form);
    constexpr bool pairs = Form::kInPairs;
    add(typename Form::template Of<Start::kLoad, Form::kBroadcast>(),
        pairs ? kWidth / 2 : kWidth,
        pairs ? m.grad_output_row_pairs : m.grad_output_rows,
        pairs ? m.query_row_pairs : m.query_rows,
        pairs ? num_pairs(range.rows) : range.rows);
    const auto* key = pairs ? m.key_rows + first / 2 * D : m.key + first * D;
    const auto* grad_scores = pairs ? m.grad_score_pairs : m.grad_scores;
    const auto num_keys = pairs ? num_pairs(range.n) : range.n;
    started ? add_query(
                  typename Form::template Of<Start::kLoad, Form::kVector>(),
                  key,
                  grad_scores,
                  num_keys)
            : add_query(
                  typename Form::template Of<Start::kZero, Form::kVector>(),
                  key,
                  grad_scores,
                  num_keys);
  };
  if constexpr (kHasPairs<X>) {
    if (multiplies_pairs<X>()) {
      pair_rows(m.grad_scores, range.n, kWidth, m.grad_score_pairs);
      // With an odd number of rows, the column after the last becomes 0.
      const auto beside = range.rows % 2 == 0 ? kWidth : range.rows;
      pair_columns(m.scores, range.n, kWidth, beside);
      pair_columns(m.grad_scores, range.n, kWidth, beside);
      nan_safe ? add_by(Products<true, true>())
               : add_by(Products<true, false>());
      return;
    }
  }
  nan_safe ? add_by(Products<false, true>()) : add_by(Products<false, false>());
}

/// Adds the gradients of a tile of queries, `width` with padding, to the
/// gradients of its heads.
template <typename X, typename T>
void store_tile(
    const AttentionArguments<X>& a,
    const Head<X>& head,
    const Range& range,
    int64_t width,
    const HeadGradients<T>& to_add,
    const BackwardMemory<T>& m) {
  const auto D = round_up_to_lanes<T>(a.head_dim);
  fill(m.scale, width, head.rule.scale);
  unpack_transposed(
      m.grad_query_lanes,
      width,
      range.rows,
      a.head_dim,
      m.scale,
      Rows<T>{m.grad_query_rows, D},
      0);
  for (int64_t r = 0; r < range.rows; ++r) {
    auto* to = to_add.query.at(range.t + r);
    const auto* from = m.grad_query_rows + r * D;
    store_each<T>(to, a.head_dim, [&](int64_t c, auto tag) {
      return hn::Add(load(tag, to + c), load(tag, from + c));
    });
  }
  for (int64_t r = 0; to_add.slopes != nullptr && r < range.rows; ++r) {
    to_add.slopes[head.head_of(range.t + r)] -=
        static_cast<double>(m.distances[r]);
  }
}

/// Computes the gradients of one tile of queries and the chunk of keys in `m`.
///
///   reads   query (rows, D), output and its gradient (rows, E), the rows'
///           statistics; m.key (n, D), m.value (n, E)
///   writes  adds to m.grad_key (n, D), m.grad_value (n, E), and the gradients
///           of the heads' query (rows, D), slopes and bias (rows, n)
///
///   1. The tile is packed.
///   2. For each block of keys: scores again, weights and the gradients of
///      scores, gradients of raw scores, and three products.
///   3. The gradient of the query is added to the gradient of its heads.
template <int kVectors, typename X, typename T>
void differentiate_tile(
    const AttentionArguments<X>& a,
    const BackwardArguments<X>& gradients,
    const Head<X>& head,
    const Range& chunk,
    const HeadGradients<T>& to_add,
    BackwardMemory<T>& m) {
  constexpr int64_t kWidth = kVectors * kLanes<T>;
  const auto& visibility = head.visibility;
  const auto dropout = dropout_of(a);

  // 1.
  const bool finite =
      load_tile<kVectors>(a, gradients, head, chunk.t, chunk.rows, m) &&
      m.finite_keys;
  if (to_add.slopes != nullptr) {
    fill(m.distances, kWidth, T(0));
  }

  // 2.
  const auto end = std::min(chunk.s_end(), visibility.end(chunk.t_end() - 1));
  bool started = false;
  for (auto block = chunk.s; block < end; block += kKeyBlock) {
    auto range = chunk;
    range.s = std::max(block, visibility.first(chunk.t) / 4 * 4);
    range.n = std::min(block + kKeyBlock, end) - range.s;
    m.map.trim(range);
    const auto verdict = visibility.tile(range);
    if (range.n <= 0 || verdict == Tile::kSkipped) {
      continue;
    }
    const auto added = m.map.changes(range.s, range.s_end())
        ? added_to_tile(a, head, range, kWidth, m.added)
        : Added<T>();
    if (added.hides_all) {
      continue;
    }
    const bool cut = verdict == Tile::kPartial || added.data != nullptr ||
        !head.rule.linear || head.rule.adds || !finite;
    compute_again<kVectors>(a, head, range, added, cut, m);
    const auto differentiate = dropout.threshold > 0
        ? (cut ? differentiate_weights<kVectors, true, true, T>
               : differentiate_weights<kVectors, false, true, T>)
        : (cut ? differentiate_weights<kVectors, true, false, T>
               : differentiate_weights<kVectors, false, false, T>);
    differentiate(range, head.dropout_index, dropout, m);
    differentiate_rule<kVectors>(a, gradients, head, range, m);
    add_gradients<kVectors>(a, range, !finite, started, m);
    started = true;
  }

  // 3.
  if (started) {
    store_tile(a, head, chunk, kWidth, to_add, m);
  }
}

} // namespace HWY_NAMESPACE
} // namespace torch_attention::cpu
HWY_AFTER_NAMESPACE();

#endif
