#pragma once

#include <torch/nn/modules/transformer.h>
#include <torch/nn/modules/transformercoder.h>
#include <torch/nn/modules/transformerlayer.h>
#include <torch/nn/pimpl.h>

#include <torch_attention/export.h>

#include <memory>
#include <optional>

/// LibTorch's transformers with our attention. They derive from LibTorch's
/// classes and inherit options, submodules and state-dict keys.
namespace torch_attention {

/// A `torch::nn::TransformerEncoder` whose layers use our attention kernels.
/// Outputs equal LibTorch's within rounding, except for the random numbers of
/// dropout.
///
/// Declare a member with this type, or wrap an existing encoder: its layers are
/// shared, not copied, so that optimizers stay valid.
///
/// Example:
/// ```
/// torch::nn::TransformerEncoder theirs(
///     torch::nn::TransformerEncoderOptions(
///         torch::nn::TransformerEncoderLayerOptions(512, 8), 6));
/// SwappedTransformerEncoder encoder(theirs);
/// auto y = encoder(src, src_mask, src_key_padding_mask); // (T, B, C)
/// ```
class TORCH_ATTENTION_API SwappedTransformerEncoderImpl
    : public torch::nn::TransformerEncoderImpl {
 public:
  using torch::nn::TransformerEncoderImpl::TransformerEncoderImpl;
  explicit SwappedTransformerEncoderImpl(
      const torch::nn::TransformerEncoderImpl& theirs);
  explicit SwappedTransformerEncoderImpl(
      const torch::nn::TransformerEncoder& theirs)
      : SwappedTransformerEncoderImpl(*theirs) {}

  /// src (T, B, C), src_mask (T, T) and src_key_padding_mask (B, T) -> (T, B,
  /// C). As in Python, a bool mask hides where it is true, and a floating-point
  /// one is added to the scores; see `attend`.
  torch::Tensor forward(
      const torch::Tensor& src,
      const torch::Tensor& src_mask = {},
      const torch::Tensor& src_key_padding_mask = {});

  /// Returns a deep copy.
  std::shared_ptr<torch::nn::Module> clone(
      const std::optional<torch::Device>& device = std::nullopt) const override;

 protected:
  FORWARD_HAS_DEFAULT_ARGS(
      {1, torch::nn::AnyValue(torch::Tensor())},
      {2, torch::nn::AnyValue(torch::Tensor())})
};
TORCH_MODULE(SwappedTransformerEncoder);

/// A `torch::nn::TransformerDecoder` whose layers use our attention kernels,
/// like `SwappedTransformerEncoder`.
class TORCH_ATTENTION_API SwappedTransformerDecoderImpl
    : public torch::nn::TransformerDecoderImpl {
 public:
  using torch::nn::TransformerDecoderImpl::TransformerDecoderImpl;
  explicit SwappedTransformerDecoderImpl(
      const torch::nn::TransformerDecoderImpl& theirs);
  explicit SwappedTransformerDecoderImpl(
      const torch::nn::TransformerDecoder& theirs)
      : SwappedTransformerDecoderImpl(*theirs) {}

  /// tgt (T, B, C), memory (S, B, C), masks (T, T) and (T, S), key padding
  /// masks (B, T) and (B, S) -> (T, B, C). Masks have the meaning that they
  /// have in the encoder.
  torch::Tensor forward(
      const torch::Tensor& tgt,
      const torch::Tensor& memory,
      const torch::Tensor& tgt_mask = {},
      const torch::Tensor& memory_mask = {},
      const torch::Tensor& tgt_key_padding_mask = {},
      const torch::Tensor& memory_key_padding_mask = {});

  /// Returns a deep copy.
  std::shared_ptr<torch::nn::Module> clone(
      const std::optional<torch::Device>& device = std::nullopt) const override;

 protected:
  FORWARD_HAS_DEFAULT_ARGS(
      {2, torch::nn::AnyValue(torch::Tensor())},
      {3, torch::nn::AnyValue(torch::Tensor())},
      {4, torch::nn::AnyValue(torch::Tensor())},
      {5, torch::nn::AnyValue(torch::Tensor())})
};
TORCH_MODULE(SwappedTransformerDecoder);

} // namespace torch_attention
