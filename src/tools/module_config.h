#pragma once

#include <torch/nn/modules/container/any.h>
#include <torch/types.h>

#include <tools/state_dict.h>
#include <torch_attention/nn/options/attention.h>

#include <cstdint>
#include <optional>
#include <string>

namespace torch_attention::tools {

/// The class and options of one of our modules.
struct ModuleConfig {
  /// "MultiHeadAttention", "CausalAttention", ...
  std::string class_name;
  int64_t d_in = 0;
  int64_t d_out = 0;
  int64_t context_length = 1;
  int64_t num_heads = 1;
  double dropout = 0.0;
  bool qkv_bias = false;
  bool causal = true;
  bool out_proj = true;
};

/// Infers the class and options of a module from the keys and shapes of its
/// state dict. The weights of a `MultiHeadAttention` do not reveal its number
/// of heads: without `num_heads` it is set to 0, as is context_length without a
/// mask.
/// Throws c10::Error if the keys belong to none of our classes.
ModuleConfig infer_config(
    const StateDict& tensors,
    std::optional<int64_t> num_heads);

/// Makes the module. Throws c10::Error for an unknown class or invalid options.
torch::nn::AnyModule make_module(const ModuleConfig& config, Kernel kernel);

} // namespace torch_attention::tools
