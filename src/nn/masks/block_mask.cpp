#include <torch_attention/nn/options/block_mask.h>

#include <check.h>
#include <kernels/block_mask.h>
#include <nn/checks.h>
#include <nn/masks/mask_expression.h>
#include <physical_memory.h>

#include <ATen/Parallel.h>
#include <c10/core/InferenceMode.h>

#include <algorithm>
#include <cstring>
#include <limits>
#include <unordered_map>
#include <utility>
#include <vector>

namespace torch_attention {

namespace {

using cpu::MaskTiles;
using detail::kMaskKeys;
using detail::kMaskRows;
using detail::MaskExpression;
using detail::MaskRegion;
using detail::Seen;
using kernels::BlockMaskSizes;
using Run = MaskTiles::Run;

constexpr const char* kName = "BlockMask";

/// Returns positions of the first query or key, int64 (1) or (B).
torch::Tensor checked_offsets(
    const char* what,
    const torch::Tensor& offsets,
    int64_t B) {
  if (!offsets.defined()) {
    return at::zeros({1}, torch::kLong);
  }
  checks::check_has_numbers(kName, what, offsets);
  TORCH_ATTENTION_CHECK(
      checks::has_integers(offsets) && offsets.dim() == 1 &&
          (offsets.size(0) == 1 || offsets.size(0) == B),
      "BlockMask: expected {} of an integer dtype and shape (batch_size) = "
      "[{}] or (1), but got {} of shape {}",
      what,
      B,
      offsets.scalar_type(),
      offsets.sizes());
  auto result = checks::to_int64(offsets.detach()).to(torch::kCPU).contiguous();
  constexpr auto kFar = int64_t{1} << 60;
  for (int64_t b = 0; b < result.size(0); ++b) {
    const auto offset = result.const_data_ptr<int64_t>()[b];
    TORCH_ATTENTION_CHECK(
        offset >= -kFar && offset <= kFar,
        "BlockMask: expected {} within 2^60, but got {}",
        what,
        offset);
  }
  return result;
}

int64_t of_sequence(const torch::Tensor& offsets, int64_t b) {
  const auto* offset = offsets.const_data_ptr<int64_t>();
  return offsets.size(0) == 1 ? offset[0] : offset[b];
}

/// The runs of one row of tiles, whose words are indices in `words`.
struct RowOfTiles {
  std::vector<Run> runs;
  std::vector<uint64_t> words;
};

/// Evaluates an expression for one row of tiles.
class RowEvaluation {
 public:
  /// `rows` and `keys` are the region of the row, all of its keys.
  RowEvaluation(const MaskExpression& expression, const MaskRegion& row)
      : expression_(expression), row_(row) {}

  RowOfTiles result() && {
    const auto tiles = BlockMaskSizes::tiles(row_.k_end - row_.k);
    if (tiles > 0) {
      divide(0, tiles);
    }
    evaluate_undecided();
    return std::move(result_);
  }

 private:
  /// The most tiles that are evaluated together, which bounds the memory.
  static constexpr int64_t kMostTogether = 256;

  MaskRegion region(int64_t tile, int64_t end) const {
    auto region = row_;
    region.k = row_.k + tile * kMaskKeys;
    region.k_end = std::min(row_.k + end * kMaskKeys, row_.k_end);
    return region;
  }

  /// Adds tiles [tile, end), divided until each is decided or alone.
  void divide(int64_t tile, int64_t end) {
    const auto seen = expression_.seen(region(tile, end));
    if (seen == Seen::kAll) {
      evaluate_undecided();
      add_complete(tile, end);
    } else if (seen == Seen::kSome && end == tile + 1) {
      if (undecided_end_ != tile || end - undecided_ > kMostTogether) {
        evaluate_undecided();
        undecided_ = tile;
      }
      undecided_end_ = end;
    } else if (seen == Seen::kSome) {
      const auto middle = tile + (end - tile) / 2;
      divide(tile, middle);
      divide(middle, end);
    }
  }

  void add_complete(int64_t tile, int64_t end) {
    auto& runs = result_.runs;
    if (!runs.empty() && runs.back().words < 0 && runs.back().end == tile) {
      runs.back().end = end;
    } else {
      runs.push_back({tile, end, -1});
    }
  }

  /// Adds the tiles of which only their bits can tell what is seen.
  void evaluate_undecided() {
    const auto tiles = undecided_end_ - undecided_;
    if (tiles == 0) {
      return;
    }
    bits_.resize(static_cast<size_t>(tiles * kMaskRows));
    expression_.write(region(undecided_, undecided_end_), bits_.data());
    for (int64_t i = 0; i < tiles; ++i) {
      add_bits(undecided_ + i, bits_.data() + i * kMaskRows);
    }
    undecided_ = undecided_end_;
  }

  void add_bits(int64_t tile, uint64_t* bits) {
    const auto of_tile = region(tile, tile + 1);
    const auto keys = ~uint64_t{0} >> (kMaskKeys - (of_tile.k_end - of_tile.k));
    const auto rows = row_.q_end - row_.q;
    uint64_t some = 0;
    auto all = keys;
    for (int64_t q = 0; q < kMaskRows; ++q) {
      bits[q] = q < rows ? bits[q] & keys : 0;
      some |= bits[q];
      all = q < rows ? all & bits[q] : all;
    }
    if (all == keys) {
      add_complete(tile, tile + 1);
    } else if (some != 0) {
      const auto at = static_cast<int64_t>(result_.words.size());
      result_.runs.push_back({tile, tile + 1, at});
      result_.words.insert(result_.words.end(), bits, bits + kMaskRows);
    }
  }

  const MaskExpression& expression_;
  MaskRegion row_;
  RowOfTiles result_;
  int64_t undecided_ = 0;
  int64_t undecided_end_ = 0;
  std::vector<uint64_t> bits_;
};

/// Collects rows, and stores tiles with equal bits once: along a diagonal all
/// are equal.
class Tiles {
 public:
  void add(const RowOfTiles& row) {
    counts_.push_back(static_cast<int64_t>(row.runs.size()));
    for (auto run : row.runs) {
      if (run.words >= 0) {
        run.words = stored(row.words.data() + run.words);
      }
      runs_.push_back(run);
    }
  }

  torch::Tensor packed(BlockMaskSizes sizes) const {
    sizes.num_runs = static_cast<int64_t>(runs_.size());
    sizes.num_words = static_cast<int64_t>(words_.size());
    return kernels::pack_block_mask(sizes, counts_, runs_, words_);
  }

 private:
  /// Returns where the bits of a tile are stored.
  int64_t stored(const uint64_t* bits) {
    uint64_t hash = 0;
    for (int64_t q = 0; q < kMaskRows; ++q) {
      constexpr uint64_t kFactor = 0x9E3779B97F4A7C15;
      hash = (hash ^ bits[q]) * kFactor;
      hash ^= hash >> 32;
    }
    const auto [first, last] = by_hash_.equal_range(hash);
    const auto bytes = kMaskRows * sizeof(uint64_t);
    const auto equal = std::find_if(first, last, [&](const auto& entry) {
      return std::memcmp(words_.data() + entry.second, bits, bytes) == 0;
    });
    if (equal != last) {
      return equal->second;
    }
    const auto at = static_cast<int64_t>(words_.size());
    words_.insert(words_.end(), bits, bits + kMaskRows);
    by_hash_.emplace(hash, at);
    return at;
  }

  std::vector<int64_t> counts_;
  std::vector<Run> runs_;
  std::vector<uint64_t> words_;
  std::unordered_multimap<uint64_t, int64_t> by_hash_;
};

void check_sizes(const BlockMaskOptions& options) {
  const auto check = [](const char* what, int64_t size, int64_t least) {
    constexpr auto kMost = int64_t{1} << 40;
    TORCH_ATTENTION_CHECK(
        size >= least && size <= kMost,
        "BlockMask: expected {} in [{}, 2^40], but got {}",
        what,
        least,
        size);
  };
  check("num_queries", options.num_queries(), 0);
  check("num_keys", options.num_keys(), 0);
  check("batch_size", options.batch_size(), 1);
  check("num_heads", options.num_heads(), 1);
  const auto rows = static_cast<double>(options.batch_size()) *
      static_cast<double>(options.num_heads()) *
      static_cast<double>(BlockMaskSizes::tiles(options.num_queries()));
  TORCH_ATTENTION_CHECK(
      rows * sizeof(RowOfTiles) <= static_cast<double>(physical_memory()),
      "BlockMask: expected sizes that fit into memory, but got batch_size = "
      "{}, num_heads = {}, num_queries = {}",
      options.batch_size(),
      options.num_heads(),
      options.num_queries());
  TORCH_ATTENTION_CHECK(
      options.query_offsets().defined() ||
          options.num_queries() == options.num_keys(),
      "BlockMask: expected query_offsets, the position of the first query, for "
      "{} queries and {} keys: {} if the queries are the last tokens of one "
      "text, 0 if they are its first",
      options.num_queries(),
      options.num_keys(),
      options.num_keys() - options.num_queries());
}

torch::Tensor evaluated(
    const MaskExpression& expression,
    const BlockMaskOptions& options) {
  check_sizes(options);
  BlockMaskSizes sizes;
  sizes.B = options.batch_size();
  sizes.H = options.num_heads();
  sizes.T = options.num_queries();
  sizes.S = options.num_keys();
  const auto queries =
      checked_offsets("query_offsets", options.query_offsets(), sizes.B);
  const auto keys =
      checked_offsets("key_offsets", options.key_offsets(), sizes.B);
  const auto last = [](const torch::Tensor& x) {
    return x.max().item<int64_t>();
  };
  const bool is_empty = sizes.T == 0 || sizes.S == 0;
  expression.check(
      {sizes.B,
       sizes.H,
       is_empty ? 0 : last(queries) + sizes.T,
       is_empty ? 0 : last(keys) + sizes.S,
       queries.min().item<int64_t>() < 0 || keys.min().item<int64_t>() < 0});
  const auto row_tiles = sizes.tiles(sizes.T);
  std::vector<RowOfTiles> rows(static_cast<size_t>(sizes.num_rows()));
  const auto evaluate = [&](int64_t begin, int64_t end) {
    for (auto i = begin; i < end; ++i) {
      MaskRegion row;
      row.b = i / (sizes.H * row_tiles);
      row.h = i / row_tiles % sizes.H;
      const auto first = i % row_tiles * kMaskRows;
      row.q = of_sequence(queries, row.b) + first;
      row.q_end = row.q + std::min(kMaskRows, sizes.T - first);
      row.k = of_sequence(keys, row.b);
      row.k_end = row.k + sizes.S;
      rows[static_cast<size_t>(i)] = RowEvaluation(expression, row).result();
    }
  };
  if (expression.calls_back()) {
    evaluate(0, sizes.num_rows());
  } else {
    at::parallel_for(0, sizes.num_rows(), /*grain_size=*/16, evaluate);
  }
  Tiles tiles;
  for (const auto& row : rows) {
    tiles.add(row);
  }
  return tiles.packed(sizes);
}

} // namespace

BlockMaskOptions::BlockMaskOptions(int64_t num_tokens)
    : BlockMaskOptions(num_tokens, num_tokens) {}

BlockMaskOptions::BlockMaskOptions(int64_t num_queries, int64_t num_keys)
    : num_queries_(num_queries), num_keys_(num_keys) {}

BlockMask::BlockMask(const MaskMod& mod, const BlockMaskOptions& options) {
  // Tensors of inference mode could not be saved for a backward pass.
  const c10::InferenceMode normal_tensors(false);
  const torch::NoGradGuard no_grad;
  packed_ = evaluated(mod.expression(), options);
}

BlockMask BlockMask::unpack(const torch::Tensor& packed) {
  TORCH_CHECK(packed.defined(), "BlockMask: the packed mask is undefined");
  kernels::check_block_mask(packed);
  BlockMask mask;
  mask.packed_ = packed;
  return mask;
}

int64_t BlockMask::batch_size() const {
  return defined() ? kernels::sizes_of_block_mask(packed_).B : 1;
}

int64_t BlockMask::num_heads() const {
  return defined() ? kernels::sizes_of_block_mask(packed_).H : 1;
}

int64_t BlockMask::num_queries() const {
  return defined() ? kernels::sizes_of_block_mask(packed_).T : 0;
}

int64_t BlockMask::num_keys() const {
  return defined() ? kernels::sizes_of_block_mask(packed_).S : 0;
}

double BlockMask::density() const {
  if (!defined()) {
    return 1;
  }
  const auto sizes = kernels::sizes_of_block_mask(packed_);
  const auto tiles = kernels::tiles_of(packed_);
  int64_t seen = 0;
  for (int64_t i = 0; i < sizes.num_runs; ++i) {
    seen += tiles.runs[i].end - tiles.runs[i].first;
  }
  const auto all = static_cast<double>(sizes.num_rows()) *
      static_cast<double>(sizes.tiles(sizes.S));
  return all > 0 ? static_cast<double>(seen) / all : 0;
}

torch::Tensor BlockMask::hidden(torch::Device device) const {
  TORCH_CHECK(defined(), "BlockMask: expected a mask, but there is none");
  return kernels::hidden_by_block_mask(packed_).to(device);
}

} // namespace torch_attention
