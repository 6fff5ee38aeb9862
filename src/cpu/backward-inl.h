// The backward pass: the scores are computed again, tile by tile.

#if defined(TORCH_ATTENTION_CPU_BACKWARD_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef TORCH_ATTENTION_CPU_BACKWARD_INL_H_
#undef TORCH_ATTENTION_CPU_BACKWARD_INL_H_
#else
#define TORCH_ATTENTION_CPU_BACKWARD_INL_H_
#endif

#include <cpu/backward_amx-inl.h>
#include <cpu/backward_memory-inl.h>
#include <cpu/backward_tile-inl.h>
#include <cpu/conversion-inl.h>
#include <cpu/head.h>
#include <cpu/mask_map-inl.h>
#include <cpu/packing-inl.h>
#include <cpu/products-inl.h>
#include <cpu/sequences.h>
#include <cpu/tasks.h>
#include <cpu/vector-inl.h>
#include <cpu/workspace.h>

#include <algorithm>
#include <cmath>
#include <memory>
#include <type_traits>
#include <vector>

HWY_BEFORE_NAMESPACE();
namespace torch_attention::cpu {
namespace HWY_NAMESPACE {

/// Returns the rows of the tiles, of `heads` interleaved heads, in which a
/// query sees some of the keys [s, s_end). `map` may be null.
template <typename T, typename X>
Queries rows_of_tiles(
    const AttentionArguments<X>& a,
    const MaskMap<T>* map,
    int64_t b,
    int64_t heads,
    int64_t s,
    int64_t s_end) {
  constexpr int64_t W = kMaxTileQueries<T>;
  auto queries = visibility_of(a, b).queries_of(a.num_queries, s, s_end);
  // Steps are the same for all keys, so that the rows for a part of the keys
  // are among the rows for all.
  const auto sees_none = [&](int64_t begin, int64_t end) {
    return map != nullptr &&
        !map->sees(b, a.num_heads, Queries{begin, end}, s, s_end);
  };
  while (queries.begin < queries.end) {
    const auto next = std::min((queries.begin / W + 1) * W, queries.end);
    if (!sees_none(queries.begin, next)) {
      break;
    }
    queries.begin = next;
  }
  while (queries.begin < queries.end) {
    const auto next = std::max((queries.end - 1) / W * W, queries.begin);
    if (!sees_none(next, queries.end)) {
      break;
    }
    queries.end = next;
  }
  const auto end = (queries.end * heads + W - 1) / W * W;
  return {queries.begin * heads / W * W, std::min(end, a.num_queries * heads)};
}

/// Packs the pairs of `n` keys and values from `s` on.
template <typename X, typename T>
void pack_key_pairs(
    const AttentionArguments<X>& a,
    int64_t b,
    int64_t g,
    int64_t s,
    int64_t n,
    BackwardMemory<T>& m) {
  const auto D = round_up_to_lanes<T>(a.head_dim);
  const auto key_row = a.key.strides.token;
  const auto value_row = a.value.strides.token;
  const auto* key = at(a.key, b, g) + s * key_row;
  const auto* value = at(a.value, b, g) + s * value_row;
  pack_pairs_of_columns(
      key, key_row, n, a.head_dim, m.key_columns, m.key_columns_row);
  pack_pairs_of_columns(
      value, value_row, n, a.value_dim, m.value_columns, m.value_columns_row);
  pack_pairs_of_rows(key, key_row, n, a.head_dim, m.key_rows, D);
  if constexpr (kHasTiles<X>) {
    if (backward_goes_by_tiles(a)) {
      pack_key_lanes(key, key_row, n, a.head_dim, m);
    }
  }
}

/// Packs the `seen` keys from s on, and their values.
template <typename X, typename T>
void pack_chunk(
    const AttentionArguments<X>& a,
    int64_t b,
    int64_t g,
    int64_t s,
    int64_t seen,
    BackwardMemory<T>& m) {
  const auto pack = [&](const Heads<const X>& x, int64_t size, T* to) {
    m.finite_keys &= pack_rows(
        at(x, b, g) + s * x.strides.token,
        x.strides.token,
        seen,
        size,
        Unscaled(),
        to,
        round_up_to_lanes<T>(size));
  };
  m.finite_keys = true;
  pack(a.key, a.head_dim, m.key);
  pack(a.value, a.value_dim, m.value);
  if constexpr (kHasPairs<X>) {
    if (multiplies_pairs<X>()) {
      pack_key_pairs(a, b, g, s, seen, m);
    }
  }
}

/// Computes the gradients of keys [s, s_end) of one key/value head, by all
/// queries.
///
///   reads   query and output (H / G, T, ...), key (n, D), value (n, E)
///   writes  the gradients of key (n, D) and value (n, E), and adds to the
///           gradients of the query heads, several of which may share tiles
///
///   1. The gradients are set to 0.
///   2. All tiles of queries that see some of the keys, which are packed for
///      the first one, add to the gradients.
///   3. The gradients of key and value are stored.
template <typename X, typename GradientsOf, typename T>
void differentiate_chunk(
    const AttentionArguments<X>& a,
    const BackwardArguments<X>& gradients,
    const BackwardPlan& plan,
    const MaskMap<T>* map,
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
  const auto n = s_end - s;

  // 1.
  // Keys beyond the length are not read.
  const auto seen = std::min(s_end, visibility_of(a, b).num_keys) - s;
  m.first_key = s;
  fill(m.grad_key, n * D, T(0));
  fill(m.grad_value, n * E, T(0));

  // 2.
  const Tiles configured(backward_goes_by_tiles(a));
  const bool wide = backward_goes_by_tiles(a);
  const auto width = wide ? kWideQueries : W;
  const auto rows = rows_of_tiles(a, map, b, plan.shared_heads, s, s_end);
  const auto end = seen > 0 ? (g + 1) * group : 0;
  bool packed = false;
  for (auto h = g * group; h < end; h += plan.shared_heads) {
    auto head = head_at(a, b, h, plan.shared_heads);
    head.map = map;
    const auto to_add = gradients_of(h);
    for (auto t = rows.begin; t < rows.end; t += width) {
      const Range chunk{t, std::min(width, rows.end - t), s, seen};
      if (head.visibility.tile(chunk) == Tile::kSkipped) {
        continue;
      }
      head.collect(chunk, m.map);
      if (!m.map.sees(chunk.s, chunk.s_end())) {
        continue;
      }
      if (!packed) {
        pack_chunk(a, b, g, s, seen, m);
        packed = true;
      }
      if constexpr (kHasTiles<X>) {
        if (wide) {
          differentiate_wide_tile(a, gradients, head, chunk, to_add, m);
          continue;
        }
      }
      with_constant<kMaxVectors>(
          static_cast<int>((chunk.rows + kLanes<T> - 1) / kLanes<T>),
          [&](auto vectors) {
            differentiate_tile<decltype(vectors)::value>(
                a, gradients, head, chunk, to_add, m);
          });
    }
  }

  // 3.
  const auto& grad_key = gradients.grad_key;
  const auto& grad_value = gradients.grad_value;
  store_rows(
      m.grad_key,
      D,
      n,
      a.head_dim,
      static_cast<T>(a.rule.factor(a.head_dim)),
      at(grad_key, b, g) + s * grad_key.strides.token,
      grad_key.strides.token);
  store_rows(
      m.grad_value,
      E,
      n,
      a.value_dim,
      T(1),
      at(grad_value, b, g) + s * grad_value.strides.token,
      grad_value.strides.token);
}

template <typename T>
void zero_rows(T* to, int64_t to_row, int64_t rows, int64_t columns) {
  for (int64_t r = 0; r < rows; ++r) {
    std::fill(to + r * to_row, to + r * to_row + columns, T(0));
  }
}

/// The memory that several tasks of `backward` add to: the gradients of the
/// query heads and their slopes, once for each split of the keys. The first
/// split adds to the gradient itself, if that has the dtype of the sums. Copies
/// are touched only in the rows of queries that see the split's keys.
template <typename X, typename T>
class SharedGradients {
 public:
  SharedGradients(
      const AttentionArguments<X>& a,
      const MaskMap<T>* map,
      const BackwardArguments<X>& gradients,
      const BackwardPlan& plan)
      : a_(a),
        gradients_(gradients),
        head_size_(a.num_queries * a.head_dim),
        num_heads_(a.batch_size * a.num_heads),
        splits_(plan.splits),
        shared_heads_(plan.shared_heads),
        num_copies_(splits_ - (kFirstIsItself ? 1 : 0)) {
    for (auto split = splits_ - num_copies_; split < splits_; ++split) {
      const auto s = split * plan.split_keys;
      const auto s_end = std::min(s + plan.split_keys, a.num_keys);
      for (int64_t b = 0; b < a.batch_size; ++b) {
        const auto rows = rows_of_tiles(a, map, b, shared_heads_, s, s_end);
        queries_.push_back(
            {rows.begin / shared_heads_,
             (rows.end + shared_heads_ - 1) / shared_heads_});
      }
    }
    const auto take = [&](Parts& parts) {
      copies_ = parts.take<T>(num_copies_ * num_heads_ * head_size_);
      if (gradients.grad_alibi_slopes != nullptr) {
        slopes_ = parts.take<double>(splits_ * num_heads_);
      }
    };
    Parts needed;
    take(needed);
    if (needed.size() > 0) {
      memory_ = allocate(needed.size());
      Parts parts(memory_.get());
      take(parts);
    }
  }

  /// Returns the gradients of head h and the heads that share its tiles.
  HeadGradients<T> at_head(int64_t split, int64_t b, int64_t h) const {
    const auto head = b * a_.num_heads + h;
    auto* slopes =
        slopes_ != nullptr ? slopes_ + split * num_heads_ + head : nullptr;
    auto copy = split;
    if constexpr (kFirstIsItself) {
      const auto& grad_query = gradients_.grad_query;
      if (split == 0) {
        const auto& strides = grad_query.strides;
        return {
            {at(grad_query, b, h), strides.token, strides.head, shared_heads_},
            slopes};
      }
      --copy;
    }
    auto* first = copies_ + (copy * num_heads_ + head) * head_size_;
    return {{first, a_.head_dim, head_size_, shared_heads_}, slopes};
  }

  void clear(int64_t split, int64_t b, int64_t h) const {
    const auto to = at_head(split, b, h);
    const auto copy = split - (splits_ - num_copies_);
    const auto rows =
        copy < 0 ? Queries{0, a_.num_queries} : queries_of(copy, b);
    const auto& query = to.query;
    zero_rows(
        query.data + rows.begin * query.token,
        query.token,
        rows.end - rows.begin,
        a_.head_dim);
    if (to.slopes != nullptr) {
      *to.slopes = 0;
    }
  }

  /// Returns the gradient of the slope of head h.
  double slope(int64_t h) const {
    double sum = 0;
    for (auto i = h; i < splits_ * num_heads_; i += a_.num_heads) {
      sum += slopes_[i];
    }
    return sum;
  }

  /// Returns the number of tasks of `add_up`, each of some rows of a head.
  int64_t num_sums() const {
    return num_copies_ == 0 ? 0 : num_heads_ * sums_per_head();
  }

  /// Adds up the splits of the query's gradient.
  void add_up(int64_t i) const {
    const auto first = i % sums_per_head() * kSumRows;
    const auto end = std::min(first + kSumRows, a_.num_queries);
    for (auto t = first; t < end; ++t) {
      add_up_row(i / sums_per_head(), t);
    }
  }

 private:
  static constexpr bool kFirstIsItself = std::is_same_v<X, T>;
  static constexpr int64_t kSumRows = 64;

  int64_t sums_per_head() const {
    return (a_.num_queries + kSumRows - 1) / kSumRows;
  }

  const Queries& queries_of(int64_t copy, int64_t b) const {
    return queries_[static_cast<size_t>(copy * a_.batch_size + b)];
  }

  void add_up_row(int64_t head, int64_t t) const {
    const auto& grad_query = gradients_.grad_query;
    const auto copy_size = num_heads_ * head_size_;
    auto* row = at(grad_query, head / a_.num_heads, head % a_.num_heads) +
        t * grad_query.strides.token;
    const auto* from = copies_ + head * head_size_ + t * a_.head_dim;
    store_each<T>(row, a_.head_dim, [&](int64_t c, auto d) {
      auto sum = kFirstIsItself ? load(d, row + c) : hn::Zero(d);
      for (int64_t copy = 0; copy < num_copies_; ++copy) {
        const auto& rows = queries_of(copy, head / a_.num_heads);
        if (rows.begin <= t && t < rows.end) {
          sum = hn::Add(sum, load(d, from + copy * copy_size + c));
        }
      }
      return sum;
    });
  }

  const AttentionArguments<X>& a_;
  const BackwardArguments<X>& gradients_;
  int64_t head_size_; // T * D
  int64_t num_heads_; // B * H
  int64_t splits_;
  int64_t shared_heads_;
  int64_t num_copies_;
  std::vector<Queries> queries_; // (copies, B)
  AlignedMemory memory_;
  T* copies_ = nullptr; // (copies, B, H, T, D)
  double* slopes_ = nullptr; // (splits, B, H)
};

/// Returns the gradient of the sink of head h: minus the sum over rows of its
/// weight, which multiplies no value, times output * grad_output.
template <typename X>
double differentiate_sink(
    const AttentionArguments<X>& a,
    const BackwardArguments<X>& gradients,
    int64_t h) {
  const auto& output = gradients.output;
  const auto& grad_output = gradients.grad_output;
  const auto sink = static_cast<double>(a.sinks[h]);
  double sum = 0;
  for (int64_t b = 0; b < a.batch_size; ++b) {
    for (int64_t t = 0; t < a.num_queries; ++t) {
      const auto row = (b * a.num_heads + h) * a.num_queries + t;
      const auto row_sum = static_cast<double>(gradients.statistics.sum[row]);
      if (row_sum == 0) {
        continue; // sees no key
      }
      const auto maximum =
          static_cast<double>(gradients.statistics.maximum[row]);
      const auto shared =
          dot(at(output, b, h) + t * output.strides.token,
              at(grad_output, b, h) + t * grad_output.strides.token,
              a.value_dim);
      sum -= std::exp(sink - maximum) / row_sum * static_cast<double>(shared);
    }
  }
  return sum;
}

/// The gradients of one attention, or of one of packed sequences, divided into
/// tasks.
template <typename X>
class BackwardWork {
 public:
  using T = Compute<X>;

  /// `map` may be null.
  BackwardWork(
      const AttentionArguments<X>& a,
      const MaskMap<T>* map,
      const BackwardArguments<X>& gradients)
      : a_(a),
        map_(map),
        gradients_(gradients),
        plan_(backward_plan(a)),
        shared_(a_, map_, gradients_, plan_) {}

  // `shared_` refers to the other members.
  BackwardWork(const BackwardWork&) = delete;
  BackwardWork& operator=(const BackwardWork&) = delete;
  BackwardWork(BackwardWork&&) = delete;
  BackwardWork& operator=(BackwardWork&&) = delete;
  ~BackwardWork() = default;

  int64_t num_tasks() const {
    return heads() * plan_.splits;
  }

  void differentiate(int64_t i) const {
    // Under a causal mask the first keys are those that most queries see.
    const auto split = i / heads();
    const auto b = i % heads() / a_.num_kv_heads;
    const auto g = i % a_.num_kv_heads;
    const auto group = a_.num_heads / a_.num_kv_heads;
    for (auto h = g * group; h < (g + 1) * group; ++h) {
      shared_.clear(split, b, h);
    }
    const auto gradients_of = [&](int64_t h) {
      return shared_.at_head(split, b, h);
    };
    Parts count;
    (void)BackwardMemory<T>(count, a_, plan_);
    Parts parts(thread_memory(count.size()));
    BackwardMemory<T> memory(parts, a_, plan_);
    const auto end = std::min((split + 1) * plan_.split_keys, a_.num_keys);
    for (auto s = split * plan_.split_keys; s < end; s += plan_.chunk_keys) {
      const auto s_end = std::min(s + plan_.chunk_keys, end);
      differentiate_chunk(
          a_, gradients_, plan_, map_, b, g, s, s_end, gradients_of, memory);
    }
  }

  const SharedGradients<X, T>& shared() const {
    return shared_;
  }

  double sink(int64_t h) const {
    return differentiate_sink(a_, gradients_, h);
  }

 private:
  int64_t heads() const {
    return a_.batch_size * a_.num_kv_heads;
  }

  AttentionArguments<X> a_;
  const MaskMap<T>* map_;
  BackwardArguments<X> gradients_;
  BackwardPlan plan_;
  SharedGradients<X, T> shared_;
};

/// Computes the gradients of all heads.
///
///   reads   query (B, H, T, D), key (B, G, S, D), value (B, G, S, E), output
///           and its gradient (B, H, T, E), statistics (B, H, T)
///   writes  the gradients of query, key and value, slopes and sinks (H) and
///           bias (B, H, T, S)
///
///   1. Mask and bias are read once, and the work is divided: by key/value
///      heads, and by keys.
///   2. Each task takes its keys through all queries.
///   3. The tasks' own copies are added up.
///   4. The gradients of sinks, which have no key, are summed separately.
template <typename X>
void backward(
    const AttentionArguments<X>& a,
    const BackwardArguments<X>& gradients,
    const Threads& threads) {
  using Work = BackwardWork<X>;

  // 1.
  std::vector<AttentionArguments<X>> attentions;
  std::vector<BackwardArguments<X>> gradients_of;
  std::vector<Heads<const X>> grad_outputs;
  const auto add = [&](const AttentionArguments<X>& one,
                       const BackwardArguments<X>& of_one) {
    attentions.push_back(one);
    gradients_of.push_back(of_one);
    grad_outputs.push_back(of_one.grad_output);
  };
  if (a.query_starts == nullptr) {
    add(a, gradients);
  } else {
    for (const auto& sequence : heaviest_sequences_first(a)) {
      add(sequence_of(a, sequence), sequence_of(a, gradients, sequence.index));
    }
  }
  const MaskMaps<X> maps(attentions, grad_outputs, threads);
  std::vector<std::unique_ptr<Work>> works;
  for (size_t i = 0; i < attentions.size(); ++i) {
    works.push_back(
        std::make_unique<Work>(attentions[i], maps.at(i), gradients_of[i]));
  }

  // 2.
  run_tasks_of(
      threads,
      works,
      [](const Work& work) { return work.num_tasks(); },
      [](const Work& work, int64_t i) { work.differentiate(i); });

  // 3.
  run_tasks_of(
      threads,
      works,
      [](const Work& work) { return work.shared().num_sums(); },
      [](const Work& work, int64_t i) { work.shared().add_up(i); });
  const auto sum_of_works = [&](const auto& of_work) {
    double sum = 0;
    for (const auto& work : works) {
      sum += of_work(*work);
    }
    return static_cast<Compute<X>>(sum);
  };
  for (int64_t h = 0; gradients.grad_alibi_slopes != nullptr && h < a.num_heads;
       ++h) {
    gradients.grad_alibi_slopes[h] =
        sum_of_works([h](const Work& work) { return work.shared().slope(h); });
  }

  // 4.
  if (gradients.grad_sinks != nullptr) {
    run_tasks(threads, a.num_heads, [&](int64_t h) {
      gradients.grad_sinks[h] =
          sum_of_works([h](const Work& work) { return work.sink(h); });
    });
  }
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
    for (auto* sums : {gradients.grad_alibi_slopes, gradients.grad_sinks}) {
      if (sums != nullptr) {
        std::fill_n(sums, arguments.num_heads, Compute<X>(0));
      }
    }
    return;
  }
  TORCH_ATTENTION_DISPATCH(backward(arguments, gradients, threads));
}

} // namespace torch_attention::cpu

#endif // HWY_ONCE

#endif
