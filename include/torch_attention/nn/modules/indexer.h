#pragma once

#include <torch/nn/cloneable.h>
#include <torch/nn/modules/linear.h>
#include <torch/nn/modules/normalization.h>
#include <torch/nn/pimpl.h>

#include <torch_attention/export.h>
#include <torch_attention/nn/options/indexer.h>

#include <cstdint>
#include <iosfwd>

namespace torch_attention {

/// Chooses the keys that each query of a `LatentAttention` attends to, by
/// scores of its own, which cost less than those of the attention (DeepSeek-AI
/// 2025, "DeepSeek-V3.2", section 2.1: lightning indexer). Query t scores key s
/// by sum over heads h of w(t, h) relu(q(t, h) k(s) / sqrt(head_dim)); the
/// `topk` keys with the largest scores among those that it may see remain.
///
/// Its parameters are named as in `DeepseekV32Indexer` of `transformers`. It
/// has no gradient: the choice is not differentiable.
///
/// Example:
/// ```
/// LatentAttention attention(
///     LatentAttentionOptions(512, 512, 4096, 8).query_rank(256).indexer(
///         IndexerOptions(/*num_heads=*/4, /*head_dim=*/128, /*topk=*/1024)));
/// ```
class TORCH_ATTENTION_API IndexerImpl
    : public torch::nn::Cloneable<IndexerImpl> {
 public:
  /// `d_in` is the size of tokens, `query_rank` that of the latent vectors from
  /// which queries are projected.
  IndexerImpl(
      int64_t d_in_,
      int64_t query_rank_,
      const IndexerOptions& options_);

  void reset() override;
  void reset_parameters();
  void pretty_print(std::ostream& stream) const override;

  /// The options with which this `Module` was constructed.
  IndexerOptions options;

  int64_t d_in = 0;
  int64_t query_rank = 0;

  torch::nn::Linear wq_b = nullptr;
  torch::nn::Linear wk = nullptr;
  torch::nn::LayerNorm k_norm = nullptr;
  torch::nn::Linear weights_proj = nullptr;
};

/// A `ModuleHolder` for `IndexerImpl`.
TORCH_MODULE(Indexer);

} // namespace torch_attention
