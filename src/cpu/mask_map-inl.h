// Reads mask and bias once for each call, into a `MaskMap`.

#if defined(TORCH_ATTENTION_CPU_MASK_MAP_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef TORCH_ATTENTION_CPU_MASK_MAP_INL_H_
#undef TORCH_ATTENTION_CPU_MASK_MAP_INL_H_
#else
#define TORCH_ATTENTION_CPU_MASK_MAP_INL_H_
#endif

#include <cpu/added-inl.h>
#include <cpu/mask_map.h>
#include <cpu/mask_rows-inl.h>
#include <cpu/score_bound-inl.h>
#include <cpu/tasks.h>
#include <cpu/workspace.h>

#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstdint>
#include <memory>
#include <type_traits>
#include <vector>

HWY_BEFORE_NAMESPACE();
namespace torch_attention::cpu {
namespace HWY_NAMESPACE {

/// Reads the mask and bias of one attention.
///
///   1. A few rows are tried. Where none of their units is hidden or unchanged,
///      the others are not read.
///   2. If a bias has low finite numbers: norms, which bound the scores.
///   3. All rows.
template <typename X>
class MaskReader {
 public:
  using T = Compute<X>;

  /// 1. `grad_output` is given in the backward pass, else absent.
  MaskReader(const AttentionArguments<X>& a, const Heads<const X>& grad_output)
      : a_(a),
        mask_(a, a.mask),
        bias_(a, a.bias),
        wide_bias_(a, a.wide_bias),
        bound_(a, grad_output) {
    map_.tiles = a.mask_tiles;
    if (!a.maps_mask || a.num_keys <= kKeyBlock) {
      return;
    }
    reads_mask_ = try_rows(mask_);
    reads_bias_ = try_rows(bias_) || try_rows(wide_bias_);
    proves_ = reads_bias_ && has_low_ && bound_.can_prove();
    if (reads_mask_ || reads_bias_) {
      take_memory();
    }
    if (proves_) {
      bound_.start();
    }
  }

  /// 2.
  int64_t num_norms() const {
    return proves_ ? bound_.num_norms() : 0;
  }
  int64_t numbers_of_norms() const {
    return proves_ ? bound_.numbers() : 0;
  }
  void read_norm(int64_t i) {
    bound_.read_norm(i);
  }

  /// 3.
  void start_rows() {
    score_bound_ = proves_ ? bound_.value() : kInfinity<double>;
  }
  int64_t num_row_tasks() const {
    return tasks_of(mask_rows()) + tasks_of(bias_rows());
  }
  int64_t numbers_of_rows() const {
    return (mask_rows() + bias_rows()) * a_.num_keys;
  }
  void read_rows(int64_t i) {
    const auto of_mask = tasks_of(mask_rows());
    if (i < of_mask) {
      read_rows_of(mask_, i, mask_bits_);
    } else if (bias_.count() > 0) {
      read_rows_of(bias_, i - of_mask, bias_bits_);
    } else {
      read_rows_of(wide_bias_, i - of_mask, bias_bits_);
    }
  }

  void finish() {
    map_.is_partial = (mask_.count() > 0 && !reads_mask_) ||
        (bias_.count() + wide_bias_.count() > 0 && !reads_bias_);
    map_.only_hides = !map_.is_partial && only_hides_;
  }

  /// Returns null if there is nothing to know.
  const MaskMap<T>* map() const {
    return reads_mask_ || reads_bias_ || map_.tiles.defined() ? &map_ : nullptr;
  }

 private:
  /// The rows that are tried.
  static constexpr int64_t kTriedRows = 16;
  /// The rows of a task.
  static constexpr int64_t kTaskRows = 16;

  static int64_t tasks_of(int64_t rows) {
    return (rows + kTaskRows - 1) / kTaskRows;
  }
  int64_t mask_rows() const {
    return reads_mask_ ? mask_.count() : 0;
  }
  int64_t bias_rows() const {
    return reads_bias_ ? bias_.count() + wide_bias_.count() : 0;
  }

  template <typename Y>
  static constexpr bool kIsMask = std::is_same_v<Y, bool>;

  /// Returns whether reading all rows is likely to pay, and notes whether a
  /// number is so low that it might hide its key.
  template <typename Y>
  bool try_rows(const ScoreRows<Y>& rows) {
    const auto tried = std::min(kTriedRows, rows.count());
    if (tried == 0) {
      return false;
    }
    const auto words = unit_words(a_.num_keys);
    std::vector<uint64_t> memory(
        static_cast<size_t>(2 * words + UnitBits::hidden_words(words)));
    auto* first = memory.data();
    const RowBits bits{first, first + words, first + 2 * words};
    bool pays = false;
    for (int64_t i = 0; i < tried; ++i) {
      const auto row = tried > 1 ? i * (rows.count() - 1) / (tried - 1) : 0;
      rows.for_rows(row, 1, [&](int64_t /*row*/, const Y* x) {
        if constexpr (kIsMask<Y>) {
          read_row(x, a_.num_keys, bits);
        } else {
          const auto limit = low_limit<X>(x, a_.num_keys, 0);
          has_low_ = has_low_ || has_low(x, a_.num_keys, limit);
          read_row(x, a_.num_keys, limit, bits);
        }
      });
      pays =
          pays || any_word(0, a_.num_keys, [&](int64_t word, uint64_t units) {
            return (~(bits.seen[word] & bits.changed[word]) & units) != 0;
          });
      if (pays && (kIsMask<Y> || has_low_)) {
        break;
      }
    }
    return pays;
  }

  void take_memory() {
    const auto words = unit_words(a_.num_keys);
    const auto take = [&](Parts& parts) {
      for (auto* bits : {&mask_bits_, &bias_bits_}) {
        const auto rows = bits == &mask_bits_ ? mask_rows() : bias_rows();
        bits->seen = parts.take<uint64_t>(rows * words);
        bits->changed = parts.take<uint64_t>(rows * words);
        bits->hidden =
            parts.take<uint64_t>(rows * UnitBits::hidden_words(words));
      }
      limits_ = parts.take<T>(proves_ ? bias_rows() : 0);
    };
    Parts needed;
    take(needed);
    memory_ = allocate(needed.size());
    Parts parts(memory_.get());
    take(parts);
    const auto map_of = [&](const UnitBits& distances, const RowBits& from) {
      auto bits = distances;
      bits.words = words;
      bits.seen = from.seen;
      bits.changed = from.changed;
      bits.hidden = from.hidden;
      return bits;
    };
    if (reads_mask_) {
      map_.mask = map_of(mask_.distances(), mask_bits_);
    }
    if (reads_bias_) {
      map_.bias = map_of(
          bias_.count() > 0 ? bias_.distances() : wide_bias_.distances(),
          bias_bits_);
    }
    map_.limits = proves_ ? limits_ : nullptr;
  }

  template <typename Y>
  void read_rows_of(const ScoreRows<Y>& rows, int64_t task, const RowBits& to) {
    const auto words = unit_words(a_.num_keys);
    const auto first = task * kTaskRows;
    const auto n = std::min(kTaskRows, rows.count() - first);
    rows.for_rows(first, n, [&](int64_t row, const Y* x) {
      const auto bits = to.row(row, words);
      if constexpr (kIsMask<Y>) {
        read_row(x, a_.num_keys, bits);
      } else {
        auto limit = -kInfinity<T>;
        if (proves_) {
          limit = std::isfinite(score_bound_)
              ? low_limit<X>(x, a_.num_keys, score_bound_)
              : limit;
          limits_[row] = limit;
        }
        if (!read_row(x, a_.num_keys, limit, bits)) {
          only_hides_.store(false, std::memory_order_relaxed);
        }
      }
    });
  }

  AttentionArguments<X> a_;
  ScoreRows<bool> mask_;
  ScoreRows<X> bias_;
  ScoreRows<T> wide_bias_;
  ScoreBound<X> bound_;
  bool reads_mask_ = false;
  bool reads_bias_ = false;
  bool has_low_ = false;
  bool proves_ = false;
  double score_bound_ = 0;
  std::atomic<bool> only_hides_{true};
  AlignedMemory memory_;
  RowBits mask_bits_;
  RowBits bias_bits_;
  T* limits_ = nullptr;
  MaskMap<T> map_;
};

/// The maps of attentions that share the threads.
template <typename X>
class MaskMaps {
 public:
  /// Reads the mask and bias of each, and `grad_outputs` unless it is empty.
  MaskMaps(
      const std::vector<AttentionArguments<X>>& attentions,
      const std::vector<Heads<const X>>& grad_outputs,
      const Threads& threads) {
    if (attentions.empty() || !has_bias_or_mask(attentions.front())) {
      return;
    }
    readers_.reserve(attentions.size());
    for (size_t i = 0; i < attentions.size(); ++i) {
      readers_.push_back(std::make_unique<MaskReader<X>>(
          attentions[i],
          grad_outputs.empty() ? Heads<const X>() : grad_outputs[i]));
    }
    using Reader = MaskReader<X>;
    run(
        threads,
        [](const Reader& reader) { return reader.numbers_of_norms(); },
        [](const Reader& reader) { return reader.num_norms(); },
        [](Reader& reader, int64_t i) { reader.read_norm(i); });
    for (const auto& reader : readers_) {
      reader->start_rows();
    }
    run(
        threads,
        [](const Reader& reader) { return reader.numbers_of_rows(); },
        [](const Reader& reader) { return reader.num_row_tasks(); },
        [](Reader& reader, int64_t i) { reader.read_rows(i); });
    for (const auto& reader : readers_) {
      reader->finish();
    }
  }

  /// Returns null if there is none.
  const MaskMap<Compute<X>>* at(size_t i) const {
    return readers_.empty() ? nullptr : readers_[i]->map();
  }

 private:
  template <typename Numbers, typename Count, typename Task>
  void run(
      const Threads& threads,
      const Numbers& numbers_of,
      const Count& count_of,
      const Task& task) const {
    // Waking the threads takes longer than to read a few numbers.
    constexpr int64_t kFew = 256 * 1024;
    int64_t numbers = 0;
    for (const auto& reader : readers_) {
      numbers += numbers_of(*reader);
    }
    if (numbers > 0) {
      run_tasks_of(
          numbers < kFew ? Threads{} : threads, readers_, count_of, task);
    }
  }

  std::vector<std::unique_ptr<MaskReader<X>>> readers_;
};

} // namespace HWY_NAMESPACE
} // namespace torch_attention::cpu
HWY_AFTER_NAMESPACE();

#endif
