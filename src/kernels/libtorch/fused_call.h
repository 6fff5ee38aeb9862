#pragma once

#include <torch_attention/nn/options/score_rule.h>

#include <torch/types.h>

#include <cstdint>
#include <optional>
#include <vector>

/// One call of LibTorch's fused kernels, which exist for CUDA.
namespace torch_attention::kernels {

/// The kernels' grids have no more blocks along batches, heads and sequences.
constexpr int64_t kMostBlocks = 65535;

enum class FusedKernel {
  /// FlashAttention: half precision, windows to both sides, grouped heads
  kFlash,
  /// The memory-efficient kernel: also float32, and what is added to scores
  kEfficient
};

/// Sequences that lie one after the other.
struct PackedStarts {
  /// int32 (B + 1) on the device: where the queries of each begin
  torch::Tensor queries;
  /// int32 (B + 1) on the device
  torch::Tensor keys;
  /// int32 (B) on the device: how many keys each has, if they do not end where
  /// the next ones begin. Such a call has no gradients.
  torch::Tensor keys_used;
  int64_t longest_query = 0;
  int64_t longest_key = 0;
};

/// Attention with tokens before heads: query (B, T, H, D), key (B, S, G, D) and
/// value (B, S, G, Dv); or (1, N, H, D) of packed sequences. The last query
/// sees the last key.
struct FusedCall {
  FusedKernel kernel = FusedKernel::kFlash;
  torch::Tensor query;
  torch::Tensor key;
  torch::Tensor value;
  std::optional<PackedStarts> packed;
  /// With a scale, and without softcap and chunk. kEfficient has a window only
  /// with causal, and none to the right.
  ScoreRule rule;
  double dropout = 0.0;
  /// Added to the scores, (B, H, T, S) in the query's dtype; kEfficient alone
  torch::Tensor added;
};

/// Results of a call. Those after the output are what its backward pass reads.
struct FusedResults {
  /// In the shape of the query
  torch::Tensor output;
  /// float32 (B, H, T or more), or (H, N) of packed sequences
  torch::Tensor logsumexp;
  /// The state of the generator of dropout
  torch::Tensor seed;
  torch::Tensor offset;
};

/// Returns whether LibTorch has `kernel` for tensors like `x`.
bool has_fused_kernel(FusedKernel kernel, const torch::Tensor& x);

/// Computes below autograd.
FusedResults fused_forward(const FusedCall& call, bool with_logsumexp);

/// Returns the gradients of query, key and value. Reads output and `logsumexp`
/// as they are given, which need not be the forward pass's: weights are
/// exp(score - logsumexp).
std::vector<torch::Tensor> fused_backward(
    const FusedCall& call,
    const FusedResults& results,
    const torch::Tensor& grad_output);

/// Returns the logsumexp, or what has its layout, for each row of the output:
/// (B, T, H, 1), or (1, N, H, 1) of packed sequences.
torch::Tensor for_each_row(const FusedCall& call, const torch::Tensor& x);

} // namespace torch_attention::kernels
