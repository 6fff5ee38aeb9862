#pragma once

#include <kernels/attention.h>

#include <torch/types.h>

#include <cstdint>

namespace torch_attention::kernels {

/// Pointers to the tensors of a linear layer, which owns them; undefined: none.
struct LinearTensors {
  const torch::Tensor* weight;
  const torch::Tensor* bias;
};

/// The settings of a whole module: all that it computes with but its tensors.
struct ModuleSettings {
  int64_t num_heads = 1;
  int64_t num_kv_heads = 1;
  ScoreRule rule;
};

/// A whole module: attention with its projections.
struct ModuleAttention {
  /// (B, T, d_in)
  const torch::Tensor* x;
  LinearTensors query;
  LinearTensors key;
  LinearTensors value;
  /// No layer if it has no weight.
  LinearTensors out;
  ModuleSettings settings;
};

/// Returns whether `small_module` computes `module`, and faster than the tensor
/// operators, whose calls alone take longer than a few multiplications.
bool is_small_module(const ModuleAttention& module);

/// Returns the output (B, T, d_out).
torch::Tensor small_module(const ModuleAttention& module);

} // namespace torch_attention::kernels
