#pragma once

#include <torch/nn/module.h>
#include <torch/nn/pimpl.h>
#include <torch/types.h>

#include <torch_attention/models/export.h>

#include <cstdint>

namespace torch_attention::models {

/// A linear layer by `functional::linear`. Making one does not draw its
/// weights, which takes long for a large model that is loaded afterwards.
class TORCH_ATTENTION_MODELS_API ProjectionImpl : public torch::nn::Module {
 public:
  /// `weight` (out, in) and `bias` (out) are uninitialised.
  ProjectionImpl(
      int64_t in,
      int64_t out,
      bool has_bias = true,
      torch::Dtype dtype = torch::kFloat);

  /// x (..., in) -> (..., out).
  torch::Tensor forward(const torch::Tensor& x);

  torch::Tensor weight;
  /// Undefined without a bias.
  torch::Tensor bias;
};
TORCH_MODULE(Projection);

} // namespace torch_attention::models
