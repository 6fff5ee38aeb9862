#pragma once

#include <torch/types.h>

#include <cstdint>
#include <optional>

/// FlashAttention on the device, with the limits that it has on CUDA's.
namespace torch_attention::testing {

/// The arguments of `aten::_flash_attention_forward`. Sizes: (B, T, H, D) and
/// (B, S, G, D), or packed (tokens, heads, D).
struct FlashCall {
  torch::Tensor query;
  torch::Tensor key;
  torch::Tensor value;
  torch::Tensor query_starts;
  torch::Tensor key_starts;
  torch::Tensor keys_used;
  int64_t most_queries = 0;
  int64_t most_keys = 0;
  double dropout = 0.0;
  bool causal = false;
  std::optional<double> scale;
  std::optional<int64_t> left;
  std::optional<int64_t> right;
};

struct FlashOutput {
  torch::Tensor output;
  torch::Tensor logsumexp;
  torch::Tensor rng_state;
  torch::Tensor unused;
};

struct FlashGradients {
  torch::Tensor query;
  torch::Tensor key;
  torch::Tensor value;
};

FlashOutput flash_forward(const FlashCall& call);

/// Returns the gradients by the output, logsumexp and random numbers that are
/// given.
FlashGradients flash_backward(
    const FlashCall& call,
    const torch::Tensor& grad_output,
    const FlashOutput& given);

} // namespace torch_attention::testing
