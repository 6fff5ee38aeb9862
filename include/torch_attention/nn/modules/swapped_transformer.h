#pragma once

#include <torch/nn/modules/transformer.h>
#include <torch/nn/modules/transformercoder.h>
#include <torch/nn/modules/transformerlayer.h>
#include <torch/nn/pimpl.h>

#include <torch_attention/export.h>

#include <memory>
#include <optional>

/// LibTorch's transformers with our attention. They derive from LibTorch's
/// classes, and so have their options, submodules and state-dict keys.
namespace torch_attention {

/// A `torch::nn::TransformerEncoder` whose layers attend by our kernels. All
/// else, and what comes out, is LibTorch's, but for the stream of dropout.
///
/// Change the type of a member to it, or wrap an encoder that exists: its
/// layers are shared, not copied, so that optimizers go on.
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

  /// As LibTorch's: src and the result (T, B, C), src_mask (T, T) and
  /// src_key_padding_mask (B, T). Bool masks hide where they are true, others
  /// are added to the scores, as in Python; see `attend`.
  torch::Tensor forward(
      const torch::Tensor& src,
      const torch::Tensor& src_mask = {},
      const torch::Tensor& src_key_padding_mask = {});

  /// A copy with weights of its own.
  std::shared_ptr<torch::nn::Module> clone(
      const std::optional<torch::Device>& device = std::nullopt) const override;

 protected:
  FORWARD_HAS_DEFAULT_ARGS(
      {1, torch::nn::AnyValue(torch::Tensor())},
      {2, torch::nn::AnyValue(torch::Tensor())})
};
TORCH_MODULE(SwappedTransformerEncoder);

/// Computes a `torch::nn::TransformerDecoder` by our attention.
class TORCH_ATTENTION_API SwappedTransformerDecoderImpl
    : public torch::nn::TransformerDecoderImpl {
 public:
  using torch::nn::TransformerDecoderImpl::TransformerDecoderImpl;
  explicit SwappedTransformerDecoderImpl(
      const torch::nn::TransformerDecoderImpl& theirs);
  explicit SwappedTransformerDecoderImpl(
      const torch::nn::TransformerDecoder& theirs)
      : SwappedTransformerDecoderImpl(*theirs) {}

  /// As LibTorch's: tgt and the result (T, B, C), memory (S, B, C), masks (T,
  /// T) and (T, S), key padding masks (B, T) and (B, S), read as those of the
  /// encoder.
  torch::Tensor forward(
      const torch::Tensor& tgt,
      const torch::Tensor& memory,
      const torch::Tensor& tgt_mask = {},
      const torch::Tensor& memory_mask = {},
      const torch::Tensor& tgt_key_padding_mask = {},
      const torch::Tensor& memory_key_padding_mask = {});

  /// A copy with weights of its own.
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
