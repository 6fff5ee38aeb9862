#pragma once

#include <torch/arg.h>
#include <torch/types.h>

#include <torch_attention/export.h>
#include <torch_attention/nn/options/mask_mod.h>

#include <cstddef>
#include <cstdint>

namespace torch_attention {

/// Options for `BlockMask`.
///
/// Example:
/// ```
/// BlockMaskOptions(/*num_queries=*/T, /*num_keys=*/S).batch_size(B)
/// ```
struct TORCH_ATTENTION_API BlockMaskOptions {
  /// As many keys as queries.
  explicit BlockMaskOptions(int64_t num_tokens);

  BlockMaskOptions(int64_t num_queries, int64_t num_keys);

  /// number of queries, T.
  TORCH_ARG(int64_t, num_queries);

  /// number of keys, S.
  TORCH_ARG(int64_t, num_keys);

  /// number of sequences whose masks differ, or 1 if all have the same.
  /// Default: 1
  TORCH_ARG(int64_t, batch_size) = 1;

  /// number of heads whose masks differ, or 1 if all have the same. Default: 1
  TORCH_ARG(int64_t, num_heads) = 1;

  /// integer tensor (batch_size) or (1): the position of the first query. For T
  /// new tokens of a cache these are its lengths before. Required if there are
  /// not as many keys as queries. Default: 0
  TORCH_ARG(torch::Tensor, query_offsets) = {};

  /// integer tensor (batch_size) or (1): the position of the first key, such as
  /// `starts` of a cache with a window. Default: 0
  TORCH_ARG(torch::Tensor, key_offsets) = {};
};

/// A `MaskMod` evaluated for T queries and S keys, once for all layers and both
/// passes: tiles of 64 x 64 that some query attends to, and for each its bits,
/// unless all of them are set. A (T, S) tensor is never formed, and attention
/// takes time in proportion to the tiles. An option of functions and modules,
/// `block_mask`; all other options apply as well, and a key is hidden if any of
/// them hides it.
///
/// Our CPU kernels read the tiles, forward and backward. Other kernels and
/// devices get `hidden()` as a mask: make that once, and pass it as `mask`.
///
/// A cheap handle: copies share the tiles, which never change.
///
/// Example:
/// ```
/// auto mod = MaskMod::causal() & MaskMod::documents(ids); // ids (B, T)
/// const BlockMask mask(mod, BlockMaskOptions(T).batch_size(B));
/// for (auto& layer : layers) {
///   x = x + layer->forward(x, ForwardOptions().block_mask(mask));
/// }
/// ```
class TORCH_ATTENTION_API BlockMask {
 public:
  /// No mask: hides nothing.
  BlockMask() = default;

  /// Throws c10::Error for negative sizes, sizes that fit into no memory,
  /// offsets of other shapes, ids and lengths of `mod` for another batch or for
  /// too few positions, and functions that give no bool of the right shape.
  BlockMask(const MaskMod& mod, const BlockMaskOptions& options);

  /// Returns the mask that `packed` describes. All of it is checked.
  /// Throws c10::Error for a tensor that `packed` did not return.
  static BlockMask unpack(const torch::Tensor& packed);

  /// Returns the mask as one tensor, int64 (n) on the CPU, for files, Python
  /// and TorchScript; undefined without a mask. It must not be changed.
  const torch::Tensor& packed() const {
    return packed_;
  }

  /// Returns whether there is a mask.
  bool defined() const {
    return packed_.defined();
  }

  /// 1 if the mask is the same for all sequences.
  int64_t batch_size() const;
  /// 1 if the mask is the same for all heads.
  int64_t num_heads() const;
  int64_t num_queries() const;
  int64_t num_keys() const;

  /// Returns the share of the tiles that some query attends to, in [0, 1].
  double density() const;

  /// Returns the number of bytes of the tiles.
  size_t nbytes() const {
    return packed_.defined() ? packed_.nbytes() : 0;
  }

  /// Returns the mask as bool (batch_size, num_heads, T, S), true where a key
  /// is hidden, as the option `mask` takes it.
  torch::Tensor hidden(torch::Device device = torch::kCPU) const;

 private:
  torch::Tensor packed_;
};

} // namespace torch_attention
