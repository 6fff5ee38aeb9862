#pragma once

#include <torch/types.h>

#include <cstdint>

namespace torch_attention::kernels {

struct LinearTensors {
  torch::Tensor weight;
  /// Undefined: none.
  torch::Tensor bias;
};

/// A whole module: attention with its projections.
struct ModuleAttention {
  /// (B, T, d_in)
  torch::Tensor x;
  LinearTensors query;
  LinearTensors key;
  LinearTensors value;
  /// Without a weight: none.
  LinearTensors out;
  int64_t num_heads = 1;
  int64_t num_kv_heads = 1;
  double scale = 1.0;
  bool causal = false;
  /// 0: none
  int64_t window = 0;
};

/// Whether `small_module` computes it, and faster than the tensor operators,
/// whose calls alone take longer than a few multiplications.
bool is_small_module(const ModuleAttention& module);

/// Output (B, T, d_out).
torch::Tensor small_module(const ModuleAttention& module);

} // namespace torch_attention::kernels
