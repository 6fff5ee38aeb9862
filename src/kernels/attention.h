#pragma once

#include <torch/types.h>

#include <optional>
#include <tuple>

/// The kernels behind `functional::scaled_dot_product_attention`. They trust
/// their arguments: what users pass is checked before.
namespace torch_attention::kernels {

/// One attention to be computed. Sizes: T queries, S keys, D head_dim; `...`
/// leading dimensions, the same for query, key and value.
struct Attention {
  /// (..., T, D)
  torch::Tensor query;
  /// (..., S, D)
  torch::Tensor key;
  /// (..., S, Dv)
  torch::Tensor value;
  /// The T queries are the last T of the S positions.
  bool causal = false;
  /// bool, broadcasts to (..., T, S), true hides; or undefined
  torch::Tensor mask;
  /// broadcasts to (..., T, S); or undefined
  torch::Tensor bias;
  std::optional<double> scale;
  /// 0 outside training
  double dropout = 0.0;
};

/// Bool (T, S), true hides.
torch::Tensor causal_mask(int64_t T, int64_t S, torch::Device device);

/// Softmax of masked and scaled scores (..., T, S), which are overwritten where
/// autograd allows. query, key and value of `attention` are not read.
torch::Tensor weights_of_scores(
    torch::Tensor scores,
    int64_t head_dim,
    const Attention& attention);

/// Output (..., T, Dv) and weights (..., T, S), the latter after dropout.
std::tuple<torch::Tensor, torch::Tensor> reference(const Attention& attention);

/// Output (..., T, Dv).
torch::Tensor fused(const Attention& attention);

} // namespace torch_attention::kernels
