#pragma once

#include <torch/types.h>

#include <cmath>
#include <cstdint>
#include <optional>
#include <tuple>

/// The kernels behind `functional::scaled_dot_product_attention`. They trust
/// their arguments: what users pass is checked before.
namespace torch_attention::kernels {

/// What an attention computes, but for its tensors.
struct AttentionSettings {
  /// Hides the keys after a query's own position.
  bool causal = false;
  /// Hides the keys `window` or more positions before it. 0: none.
  int64_t window = 0;
  std::optional<double> scale;
  /// Scores become softcap * tanh(score / softcap) after the scale. 0: not.
  double softcap = 0.0;
  /// 0 outside training
  double dropout = 0.0;
};

/// One attention to be computed. Sizes: T queries, S keys, D head_dim; `...`
/// leading dimensions, the same for query, key and value; or (..., H) for the
/// query and (..., G) for key and value, where H is a multiple of G and query
/// head h reads head h / (H / G).
struct Attention : AttentionSettings {
  /// (..., T, D)
  torch::Tensor query;
  /// (..., S, D)
  torch::Tensor key;
  /// (..., S, Dv)
  torch::Tensor value;
  /// int64 (B) beside the query (B, ..., T, D): hides the keys from here on; or
  /// undefined
  torch::Tensor key_lengths;
  /// int64 (B), the position of the first query; or undefined: S - T
  torch::Tensor query_offsets;
  /// bool, broadcasts to (..., T, S), true hides; or undefined
  torch::Tensor mask;
  /// broadcasts to (..., T, S); or undefined
  torch::Tensor bias;
  /// float32 or float64 (H) beside the query (B, H, T, D): what scores lose for
  /// each position between query and key; or undefined
  torch::Tensor alibi_slopes;
};

/// The factor of the scores where none is given.
inline double default_scale(int64_t head_dim) {
  return 1 / std::sqrt(static_cast<double>(head_dim));
}

/// Output (..., T, Dv) and weights (..., T, S), the latter after dropout.
std::tuple<torch::Tensor, torch::Tensor> reference(const Attention& attention);

/// Softmax of masked and scaled scores (..., T, S), which are overwritten where
/// autograd allows. query, key and value of `attention` are not read.
torch::Tensor weights_of_scores(
    torch::Tensor scores,
    int64_t head_dim,
    const Attention& attention);

/// Output (..., T, Dv), by the best of the kernels below, or by `reference`
/// where they have none.
torch::Tensor fused(const Attention& attention);

/// Our own, on the CPU.
torch::Tensor tiled(const Attention& attention);

/// Whether `tiled` computes it.
bool is_tiled(const Attention& attention);

/// LibTorch's, on any device.
torch::Tensor libtorch(const Attention& attention);

/// Whether `libtorch` computes it.
bool is_libtorch(const Attention& attention);

} // namespace torch_attention::kernels
