// Linear layers whose sums have one order for any number of rows: a sum goes
// along the input in parts, which are added up in their order. The products of
// few rows and of many are those of attention's rows and tiles.

#if defined(TORCH_ATTENTION_CPU_LINEAR_IN_ORDER_INL_H_) == \
    defined(HWY_TARGET_TOGGLE)
#ifdef TORCH_ATTENTION_CPU_LINEAR_IN_ORDER_INL_H_
#undef TORCH_ATTENTION_CPU_LINEAR_IN_ORDER_INL_H_
#else
#define TORCH_ATTENTION_CPU_LINEAR_IN_ORDER_INL_H_
#endif

#include <cpu/conversion-inl.h>
#include <cpu/forward_row_scores-inl.h>
#include <cpu/linear.h>
#include <cpu/packing-inl.h>
#include <cpu/products-inl.h>
#include <cpu/tasks.h>
#include <cpu/workspace.h>

#include <algorithm>
#include <type_traits>
#include <vector>

HWY_BEFORE_NAMESPACE();
namespace torch_attention::cpu {
namespace HWY_NAMESPACE {

/// The steps of a part of a sum; a step is a number of the input, or a pair.
constexpr int64_t kPartSteps = 128;

/// The outputs that are computed at once: a weight's (kOutputs, kPartSteps)
/// stay in the cache.
constexpr int64_t kOutputs = kKeyBlock;

/// A layer's operands in steps: rows (rows, steps), and the weight (out, steps)
/// as it is stored.
template <typename X, typename W>
struct StepsOfLayer {
  const LinearLayer<X>* layer;
  const float* x;
  int64_t rows;
  const W* weight;
  int64_t steps;
};

/// Adds the bias to numbers [first, first + n) of a row, and stores them.
template <typename X>
void store_outputs(
    const LinearLayer<X>& layer,
    int64_t row,
    int64_t first,
    int64_t n,
    const float* sums) {
  store_each<float>(
      layer.output + row * layer.out + first, n, [&](int64_t i, auto d) {
        const auto sum = load(d, sums + i);
        return layer.bias == nullptr
            ? sum
            : hn::Add(sum, load(d, layer.bias + first + i));
      });
}

/// The most rows that are computed as rows: with more, the columns of tiles are
/// filled well enough.
constexpr int64_t kMostFewRows = 8;

/// The outputs of few rows that are computed at once.
constexpr int64_t kFewOutputs = kOutputs / 2;

/// Computes outputs [begin, begin + n) of few rows.
template <typename P, typename X, typename W>
void multiply_few_rows(const StepsOfLayer<X, W>& in, int64_t begin, int64_t n) {
  const Tag<float> d;
  // Rows of a weight may be a power of two apart, where they evict each other
  // from the cache; a vector more, and they do not.
  constexpr int64_t kRow = kPartSteps + kLanes<float>;
  HWY_ALIGN float weight[kFewOutputs * kRow];
  HWY_ALIGN float sums[kMostFewRows * kOutputs];
  HWY_ALIGN float part[kMaxRowsInOrder * kOutputs];
  HWY_ALIGN float memory[kOutputs * kPartSteps];
  constexpr auto kBytes = static_cast<int64_t>(sizeof(W));
  for (int64_t k = 0; k < in.steps; k += kPartSteps) {
    const auto steps = std::min(kPartSteps, in.steps - k);
    const auto* stored = in.weight + begin * in.steps + k;
    pack_rows(stored, in.steps, n, steps, Unscaled(), weight, kRow);
    // Prefetches the next part; after the last one, the next outputs' weight.
    const NextRows next{
        k + kPartSteps < in.steps ? stored + kPartSteps
                                  : in.weight + (begin + n) * in.steps,
        in.steps * kBytes,
        0,
        std::min(kPartSteps, in.steps) * kBytes};
    for (int64_t r = 0; r < in.rows; r += kMaxRowsInOrder) {
      const auto rows = std::min<int64_t>(kMaxRowsInOrder, in.rows - r);
      const RowProduct<float, float> product{
          in.x + r * in.steps + k,
          in.steps,
          rows,
          RowKeys<float>{weight, kRow, n, r == 0 ? next : NextRows()},
          steps};
      auto* total = sums + r * kOutputs;
      multiply_scores_in_order<P>(product, memory, k == 0 ? total : part);
      for (int64_t i = 0; k > 0 && i < rows; ++i) {
        for (int64_t o = 0; o < n; o += kLanes<float>) {
          auto* to = total + i * kOutputs + o;
          store(hn::Add(load(d, part + i * kOutputs + o), load(d, to)), d, to);
        }
      }
    }
  }
  for (int64_t r = 0; r < in.rows; ++r) {
    store_outputs(*in.layer, r, begin, n, sums + r * kOutputs);
  }
}

/// The rows of many as tiles of columns (steps, width).
struct RowTiles {
  static constexpr int64_t kWidth = kMaxTileQueries<float>;
  /// so many that a weight is read from the cache for all of them
  static constexpr int64_t kPerTask = 16;

  int64_t rows;
  int64_t steps;
  AlignedMemory memory;

  RowTiles(int64_t num_rows, int64_t num_steps)
      : rows(num_rows),
        steps(num_steps),
        memory(allocate(
            static_cast<size_t>(count() * steps * kWidth) * sizeof(float))) {}

  int64_t count() const {
    return (rows + kWidth - 1) / kWidth;
  }
  int64_t rows_of(int64_t tile) const {
    return std::min(kWidth, rows - tile * kWidth);
  }
  int64_t vectors_of(int64_t tile) const {
    return (rows_of(tile) + kLanes<float> - 1) / kLanes<float>;
  }
  float* at(int64_t tile) const {
    return reinterpret_cast<float*>(memory.get()) + tile * steps * kWidth;
  }
  void pack(const float* x, int64_t tile) const {
    pack_transposed(
        Rows<const float>{x, steps},
        tile * kWidth,
        rows_of(tile),
        steps,
        Unscaled(),
        at(tile),
        vectors_of(tile) * kLanes<float>);
  }
};

/// Computes outputs [begin, begin + n) of the rows of tiles [first, last).
template <typename P, typename X, typename W>
void multiply_tiles(
    const StepsOfLayer<X, W>& in,
    const RowTiles& tiles,
    int64_t first,
    int64_t last,
    int64_t begin,
    int64_t n) {
  constexpr auto kWidth = RowTiles::kWidth;
  constexpr auto kTileNumbers = kOutputs * kWidth;
  Parts count;
  float* wide = nullptr;
  float* sums = nullptr;
  const auto take = [&](Parts& parts) {
    wide = parts.take<float>(kOutputs * kPartSteps);
    sums = parts.take<float>((last - first) * kTileNumbers);
  };
  take(count);
  Parts parts(thread_memory(count.size()));
  take(parts);
  for (int64_t k = 0; k < in.steps; k += kPartSteps) {
    const auto steps = std::min(kPartSteps, in.steps - k);
    const auto* stored = in.weight + begin * in.steps + k;
    Broadcast<float> weight{nullptr, in.steps, 1};
    if constexpr (std::is_same_v<W, float>) {
      weight.data = stored;
    } else {
      const auto row = round_up_to_lanes<float>(steps);
      pack_rows(stored, in.steps, n, steps, Unscaled(), wide, row);
      weight = {wide, row, 1};
    }
    for (auto i = first; i < last; ++i) {
      const auto vectors = static_cast<int>(tiles.vectors_of(i));
      with_constant<kMaxVectors>(vectors, [&](auto constant) {
        constexpr int kVectors = decltype(constant)::value;
        constexpr int64_t kRow = kVectors * kLanes<float>;
        const auto multiply = [&](auto product) {
          multiply_scores<decltype(product), kVectors>(
              weight,
              n,
              tiles.at(i) + k * kRow,
              kRow,
              steps,
              sums + (i - first) * kTileNumbers,
              Lanes<float>{});
        };
        k == 0 ? multiply(typename P::First()) : multiply(typename P::Next());
      });
    }
  }
  HWY_ALIGN float outputs[kWidth * kOutputs];
  float ones[kWidth];
  std::fill_n(ones, kWidth, 1.0F);
  for (auto i = first; i < last; ++i) {
    const auto rows = tiles.rows_of(i);
    unpack_transposed(
        sums + (i - first) * kTileNumbers,
        tiles.vectors_of(i) * kLanes<float>,
        rows,
        n,
        ones,
        Rows<float>{outputs, kOutputs},
        0);
    for (int64_t r = 0; r < rows; ++r) {
      store_outputs(
          *in.layer, i * kWidth + r, begin, n, outputs + r * kOutputs);
    }
  }
}

/// The products of numbers, or of pairs, that begin a sum and that add to it.
struct ByNumbersInOrder {
  using First = Product<Start::kZero>;
  using Next = Product<Start::kAddLast>;
};
struct ByPairsInOrder {
  using First = PairProduct<Product<Start::kZero>>;
  using Next = PairProduct<Product<Start::kAddLast>>;
};

/// Computes all layers. `x` (rows, steps); `weight_of` returns a layer's weight
/// (out, steps).
template <typename P, typename X, typename WeightOf>
void multiply_all_in_order(
    const LinearInput<X>& input,
    const std::vector<LinearLayer<X>>& layers,
    const float* x,
    int64_t steps,
    const WeightOf& weight_of,
    const Threads& threads) {
  const auto of_layer = [&](const LinearLayer<X>& layer) {
    const auto* weight = weight_of(layer);
    using W = std::remove_cv_t<std::remove_pointer_t<decltype(weight)>>;
    return StepsOfLayer<X, W>{&layer, x, input.rows, weight, steps};
  };
  const bool few = input.rows <= kMostFewRows;
  const auto block = few ? kFewOutputs : kOutputs;
  const auto blocks_of = [&](const LinearLayer<X>& layer) {
    return (layer.out + block - 1) / block;
  };
  const auto outputs_from = [&](const LinearLayer<X>& layer, int64_t begin) {
    return std::min(block, layer.out - begin);
  };
  if (few) {
    run_tasks_of_stream(
        threads, layers, blocks_of, [&](const auto& layer, int64_t i) {
          const auto begin = i * block;
          multiply_few_rows<typename P::First>(
              of_layer(layer), begin, outputs_from(layer, begin));
        });
    return;
  }
  const RowTiles tiles(input.rows, steps);
  run_tasks(threads, tiles.count(), [&](int64_t i) { tiles.pack(x, i); });
  constexpr auto kPerTask = RowTiles::kPerTask;
  const auto groups = (tiles.count() + kPerTask - 1) / kPerTask;
  run_tasks_of_stream(
      threads,
      layers,
      [&](const auto& layer) { return groups * blocks_of(layer); },
      [&](const auto& layer, int64_t i) {
        const auto begin = i / groups * block;
        const auto first = i % groups * kPerTask;
        multiply_tiles<P>(
            of_layer(layer),
            tiles,
            first,
            std::min(first + kPerTask, tiles.count()),
            begin,
            outputs_from(layer, begin));
      });
}

} // namespace HWY_NAMESPACE
} // namespace torch_attention::cpu
HWY_AFTER_NAMESPACE();

#endif
