#pragma once

#include <kernels/attention.h>

#include <torch/types.h>

#include <cstdint>

namespace torch_attention::kernels {

/// Of a linear layer, which owns them; undefined: none.
struct LinearTensors {
  const torch::Tensor* weight;
  const torch::Tensor* bias;
};

/// What a whole module computes, but for its tensors.
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
  /// Without a weight: none.
  LinearTensors out;
  ModuleSettings settings;
};

/// Whether `small_module` computes it, and faster than the tensor operators,
/// whose calls alone take longer than a few multiplications.
bool is_small_module(const ModuleAttention& module);

/// Output (B, T, d_out).
torch::Tensor small_module(const ModuleAttention& module);

} // namespace torch_attention::kernels
