#include <kernels/block_mask.h>

#include <check.h>
#include <kernels/plain.h>

#include <ATen/ops/empty.h>

#include <algorithm>
#include <cstring>

namespace torch_attention::kernels {

namespace {

using cpu::MaskTiles;

/// The first number of each packed mask; the next format gets another.
constexpr int64_t kFormat = 0x544131;
constexpr int64_t kHeader = 8;
constexpr int64_t kNumbersOfRun = sizeof(MaskTiles::Run) / sizeof(int64_t);

static_assert(sizeof(MaskTiles::Run) == 3 * sizeof(int64_t));
static_assert(sizeof(uint64_t) == sizeof(int64_t));

const int64_t* numbers_of(const torch::Tensor& packed) {
  return packed.const_data_ptr<int64_t>();
}

/// Returns the number of numbers of a mask, which may overflow for sizes that
/// are not checked.
int64_t num_numbers(const BlockMaskSizes& sizes) {
  return kHeader + 2 * sizes.num_rows() + kNumbersOfRun * sizes.num_runs +
      sizes.num_words;
}

/// Checks the sizes, each of which fits into memory, so that their products do
/// not overflow.
void check_sizes(const torch::Tensor& packed) {
  const auto n = packed.numel();
  TORCH_ATTENTION_CHECK(
      n >= kHeader && numbers_of(packed)[0] == kFormat,
      "BlockMask: expected a tensor that BlockMask::packed() returned, but "
      "got {} numbers of something else",
      n);
  const auto s = sizes_of_block_mask(packed);
  const auto is_size = [](int64_t x) {
    return x >= 0 && x <= int64_t{1} << 40;
  };
  const auto fits = [&](int64_t a, int64_t b) { return a == 0 || b <= n / a; };
  TORCH_ATTENTION_CHECK(
      s.B > 0 && s.H > 0 && is_size(s.T) && is_size(s.S) && fits(s.B, s.H) &&
          fits(s.B * s.H, s.tiles(s.T)) && is_size(s.num_runs) &&
          is_size(s.num_words) && num_numbers(s) == n,
      "BlockMask: expected the numbers for a mask of shape {} with {} runs and "
      "{} words, but got {}",
      torch::IntArrayRef({s.B, s.H, s.T, s.S}),
      s.num_runs,
      s.num_words,
      n);
}

} // namespace

torch::Tensor pack_block_mask(
    const BlockMaskSizes& sizes,
    const std::vector<int64_t>& rows,
    const std::vector<MaskTiles::Run>& runs,
    const std::vector<uint64_t>& words) {
  auto packed = at::empty({num_numbers(sizes)}, torch::kLong);
  auto* to = packed.mutable_data_ptr<int64_t>();
  const int64_t header[kHeader] = {
      kFormat,
      sizes.B,
      sizes.H,
      sizes.T,
      sizes.S,
      sizes.num_runs,
      sizes.num_words,
      0};
  to = std::copy(header, header + kHeader, to);
  int64_t begin = 0;
  for (const auto count : rows) {
    *to++ = begin;
    begin += count;
    *to++ = begin;
  }
  const auto copy = [&](const auto& from) {
    const auto bytes = from.size() * sizeof(from[0]);
    if (bytes > 0) {
      std::memcpy(to, from.data(), bytes);
    }
    to += bytes / sizeof(int64_t);
  };
  copy(runs);
  copy(words);
  return packed;
}

BlockMaskSizes sizes_of_block_mask(const torch::Tensor& packed) {
  const auto* x = numbers_of(packed);
  return {x[1], x[2], x[3], x[4], x[5], x[6]};
}

MaskTiles tiles_of(const torch::Tensor& packed) {
  MaskTiles tiles;
  if (!packed.defined()) {
    return tiles;
  }
  const auto sizes = sizes_of_block_mask(packed);
  const auto row_tiles = sizes.tiles(sizes.T);
  tiles.rows = numbers_of(packed) + kHeader;
  tiles.batch = sizes.B == 1 ? 0 : sizes.H * row_tiles * 2;
  tiles.head = sizes.H == 1 ? 0 : row_tiles * 2;
  const auto* runs = tiles.rows + 2 * sizes.num_rows();
  tiles.runs = reinterpret_cast<const MaskTiles::Run*>(runs);
  tiles.words =
      reinterpret_cast<const uint64_t*>(runs + kNumbersOfRun * sizes.num_runs);
  return tiles;
}

void check_block_mask(const torch::Tensor& packed) {
  TORCH_ATTENTION_CHECK(
      is_plain(packed) && packed.scalar_type() == torch::kLong &&
          packed.dim() == 1 && packed.is_contiguous(),
      "BlockMask: expected a contiguous int64 tensor (n) on the CPU, but got "
      "{} of shape {} on {}",
      packed.scalar_type(),
      packed.sizes(),
      packed.device());
  check_sizes(packed);
  const auto sizes = sizes_of_block_mask(packed);
  const auto tiles = tiles_of(packed);
  const auto key_tiles = sizes.tiles(sizes.S);
  for (int64_t row = 0; row < sizes.num_rows(); ++row) {
    const auto begin = tiles.rows[2 * row];
    const auto end = tiles.rows[2 * row + 1];
    bool is_right = begin >= 0 && begin <= end && end <= sizes.num_runs;
    int64_t next = 0;
    for (auto i = begin; is_right && i < end; ++i) {
      const auto& run = tiles.runs[i];
      is_right = run.first >= next && run.end > run.first &&
          run.end <= key_tiles &&
          (run.words < 0 ||
           (run.end == run.first + 1 &&
            run.words <= sizes.num_words - MaskTiles::kSize));
      next = run.end;
    }
    TORCH_ATTENTION_CHECK(
        is_right,
        "BlockMask: expected runs of tiles that follow each other within {} "
        "tiles of keys, but row {} of tiles has others",
        key_tiles,
        row);
  }
}

torch::Tensor block_mask_of_head(const torch::Tensor& packed, int64_t head) {
  auto sizes = sizes_of_block_mask(packed);
  const auto tiles = tiles_of(packed);
  const auto num_rows = sizes.tiles(sizes.T);
  std::vector<int64_t> counts;
  std::vector<MaskTiles::Run> runs;
  for (int64_t b = 0; b < sizes.B; ++b) {
    for (int64_t row = 0; row < num_rows; ++row) {
      const auto of_row = tiles.runs_from(b, head, row, 0);
      counts.push_back(of_row.last - of_row.first);
      runs.insert(runs.end(), of_row.first, of_row.last);
    }
  }
  sizes.H = 1;
  sizes.num_runs = static_cast<int64_t>(runs.size());
  return pack_block_mask(
      sizes, counts, runs, {tiles.words, tiles.words + sizes.num_words});
}

torch::Tensor hidden_by_block_mask(const torch::Tensor& packed) {
  const auto sizes = sizes_of_block_mask(packed);
  const auto tiles = tiles_of(packed);
  // Tensors that are made inside torch.func have no memory of their own.
  const c10::impl::ExcludeDispatchKeyGuard no_transforms(c10::DispatchKeySet(
      {c10::DispatchKey::FuncTorchDynamicLayerFrontMode,
       c10::DispatchKey::FuncTorchDynamicLayerBackMode}));
  auto hidden = at::empty({sizes.B, sizes.H, sizes.T, sizes.S}, torch::kBool);
  auto* to = hidden.mutable_data_ptr<bool>();
  for (int64_t b = 0; b < sizes.B; ++b) {
    for (int64_t h = 0; h < sizes.H; ++h) {
      for (int64_t t = 0; t < sizes.T; ++t) {
        for (int64_t s = 0; s < sizes.S; s += MaskTiles::kSize) {
          auto seen = tiles.seen_from(b, h, t, s);
          const auto n = std::min(sizes.S - s, MaskTiles::kSize);
          for (int64_t i = 0; i < n; ++i, seen >>= 1) {
            *to++ = (seen & 1) == 0;
          }
        }
      }
    }
  }
  return hidden;
}

Attention with_dense_mask(
    const Attention& attention,
    int64_t dim,
    torch::Device device) {
  auto a = attention;
  auto hidden = hidden_by_block_mask(a.block_mask).to(device);
  if (dim < 4) {
    hidden = hidden.squeeze(1);
  }
  if (dim < 3) {
    hidden = hidden.squeeze(0);
  }
  a.mask = a.mask.defined() ? hidden.bitwise_or(a.mask) : hidden;
  a.block_mask = torch::Tensor();
  return a;
}

} // namespace torch_attention::kernels
