#pragma once

#include <torch/arg.h>

#include <torch_attention/export.h>
#include <torch_attention/nn/options/rotary.h>

#include <cstdint>

namespace torch_attention {

/// Options for the `Indexer` of `LatentAttention`. The defaults are those of
/// DeepSeek-V3.2.
///
/// Example:
/// ```
/// options.indexer(IndexerOptions(/*num_heads=*/64, /*head_dim=*/128, 2048));
/// ```
struct TORCH_ATTENTION_API IndexerOptions {
  IndexerOptions(int64_t num_heads, int64_t head_dim, int64_t topk);

  /// number of the indexer's query heads; they share one key (`index_n_heads`).
  TORCH_ARG(int64_t, num_heads);

  /// size of its queries and keys, of which the first `rope_dim` elements are
  /// rotated (`index_head_dim`).
  TORCH_ARG(int64_t, head_dim);

  /// largest number of keys that a query attends to (`index_topk`). Of keys
  /// with equal scores, which few heads often give (0 where all products are
  /// negative), `torch::topk` chooses, as in Python; its choice may change with
  /// the number of keys, so that `decode` and `forward` differ there.
  TORCH_ARG(int64_t, topk);

  /// which elements are rotated together; the angles are those of the
  /// attention. GLM-5 has kInterleaved. Default: RotaryPairing::kHalves
  TORCH_ARG(RotaryPairing, pairing) = RotaryPairing::kHalves;

  /// eps of the layer norm of keys. Default: 1e-6
  TORCH_ARG(double, norm_eps) = 1e-6;
};

} // namespace torch_attention
