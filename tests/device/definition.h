#pragma once

#include <torch/types.h>

#include <cstdint>
#include <optional>
#include <vector>

/// Attention in float64 on the CPU, by its definition. The operators of the
/// device that stand for CUDA's kernels compute by it.
namespace torch_attention::testing {

/// The keys that a query may see: those at most `left` before its position and
/// at most `right` after it. A query's position is its index plus `offset`.
struct Window {
  std::optional<int64_t> left;
  std::optional<int64_t> right;
  int64_t offset = 0;
};

/// One sequence. All tensors are float64 on the CPU.
struct DefinedAttention {
  torch::Tensor query; // (T, H, D)
  torch::Tensor key; // (S, G, D), where H is a multiple of G
  torch::Tensor value; // (S, G, Dv)
  torch::Tensor bias; // (H, T, S) or undefined
  torch::Tensor kept; // (H, T, S), factors of the weights, or undefined
  Window window;
  double scale = 1.0;
  /// The logsumexp of a query that sees no key, as a kernel has it: with
  /// infinity all its weights are 0, with NaN all are NaN.
  double empty_logsumexp = 0.0;
};

struct DefinedOutput {
  torch::Tensor output; // (T, H, Dv)
  torch::Tensor logsumexp; // (H, T)
};

struct DefinedGradients {
  torch::Tensor query; // (T, H, D)
  torch::Tensor key; // (S, G, D)
  torch::Tensor value; // (S, G, Dv)
  torch::Tensor bias; // (H, T, S)
};

DefinedOutput attention_by_definition(const DefinedAttention& attention);

/// Returns the gradients by the output and the logsumexp that are given, as the
/// kernels do, which do not compute them again.
DefinedGradients gradients_by_definition(
    const DefinedAttention& attention,
    const torch::Tensor& grad_output,
    const DefinedOutput& given);

/// The numbers by which a dropout mask can be drawn twice.
struct DropoutState {
  int64_t seed = 0;
  double probability = 0.0;
};

/// Returns a new seed from LibTorch's generator of the CPU.
int64_t draw_seed();

/// Returns the factors (H, T, S) of the weights of sequence b: 0, or what keeps
/// their mean. Undefined without dropout.
torch::Tensor kept_by_dropout(
    const DropoutState& dropout,
    int64_t b,
    torch::IntArrayRef sizes);

} // namespace torch_attention::testing
