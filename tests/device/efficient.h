#pragma once

#include <torch/types.h>

#include <cstdint>
#include <optional>

/// Memory-efficient attention on the device, with the limits that it has on
/// CUDA's.
namespace torch_attention::testing {

/// The arguments of `aten::_efficient_attention_forward`. Sizes: (B, T, H, D),
/// (B, S, H, D) and (B, S, H, Dv); packed sequences have B = 1.
struct EfficientCall {
  torch::Tensor query;
  torch::Tensor key;
  torch::Tensor value;
  torch::Tensor bias; // (B, H, T, S) or undefined
  torch::Tensor query_starts;
  torch::Tensor key_starts;
  torch::Tensor keys_used;
  std::optional<int64_t> most_queries;
  std::optional<int64_t> most_keys;
  double dropout = 0.0;
  /// 0: none, 1: causal from the top left, 2: causal from the bottom right
  int64_t mask_type = 0;
  bool wants_logsumexp = false;
  std::optional<double> scale;
  std::optional<int64_t> window;
};

struct EfficientOutput {
  torch::Tensor output;
  torch::Tensor logsumexp;
  torch::Tensor seed;
  torch::Tensor offset;
  int64_t most_queries = 0;
  int64_t most_keys = 0;
};

struct EfficientGradients {
  torch::Tensor query;
  torch::Tensor key;
  torch::Tensor value;
  torch::Tensor bias;
};

EfficientOutput efficient_forward(const EfficientCall& call);

/// Returns the gradients by the output, logsumexp and random numbers that are
/// given. The bias has one only if it is wanted.
EfficientGradients efficient_backward(
    const EfficientCall& call,
    const torch::Tensor& grad_output,
    const EfficientOutput& given,
    bool wants_bias);

} // namespace torch_attention::testing
