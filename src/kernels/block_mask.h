#pragma once

#include <cpu/mask_tiles.h>
#include <kernels/attention.h>

#include <torch/types.h>

#include <cstdint>
#include <vector>

/// The one tensor of a `BlockMask`.
namespace torch_attention::kernels {

/// Sizes of a mask (B, H, T, S), where B and H may be 1 for all, and of what is
/// stored.
struct BlockMaskSizes {
  int64_t B = 1;
  int64_t H = 1;
  int64_t T = 0;
  int64_t S = 0;
  int64_t num_runs = 0;
  int64_t num_words = 0;

  /// Returns the number of tiles along `n` queries or keys.
  static int64_t tiles(int64_t n) {
    return (n + cpu::MaskTiles::kSize - 1) / cpu::MaskTiles::kSize;
  }
  int64_t num_rows() const {
    return B * H * tiles(T);
  }
};

/// Returns the tensor: int64, the sizes, the rows of `cpu::MaskTiles`, its
/// runs, and its words. `rows` has the number of runs of each row.
torch::Tensor pack_block_mask(
    const BlockMaskSizes& sizes,
    const std::vector<int64_t>& rows,
    const std::vector<cpu::MaskTiles::Run>& runs,
    const std::vector<uint64_t>& words);

/// Checks that nothing in `packed` leads out of its memory. Throws c10::Error.
void check_block_mask(const torch::Tensor& packed);

BlockMaskSizes sizes_of_block_mask(const torch::Tensor& packed);

/// Returns the tiles in the memory of `packed`, which may be undefined.
cpu::MaskTiles tiles_of(const torch::Tensor& packed);

/// Returns the mask of one head.
torch::Tensor block_mask_of_head(const torch::Tensor& packed, int64_t head);

/// Returns the mask as bool (B, H, T, S) on the CPU, true where a key is
/// hidden.
torch::Tensor hidden_by_block_mask(const torch::Tensor& packed);

/// Returns `attention` with its block mask as a part of `mask`, for scores of
/// `dim` dimensions on `device`.
Attention with_dense_mask(
    const Attention& attention,
    int64_t dim,
    torch::Device device);

} // namespace torch_attention::kernels
