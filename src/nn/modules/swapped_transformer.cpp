#include <torch_attention/nn/modules/swapped_transformer.h>

#include <torch_attention/nn/utils/swap_transformer.h>

#include <torch/nn/functional/activation.h>

#include <functional>
#include <variant>

namespace torch_attention {

namespace {

/// Returns options of an encoder or decoder without layers, which are then
/// shared with another one.
template <typename Options>
Options without_layers(Options options) {
  return options.num_layers(0).norm(torch::nn::AnyModule());
}

/// Makes `ours` use the layers of `theirs`, under the same names.
template <typename Ours, typename Theirs>
void share_layers(Ours& ours, const Theirs& theirs) {
  // Before the layers are shared: each may be in another mode.
  ours.train(theirs.is_training());
  ours.options = theirs.options;
  ours.layers = ours.replace_module("layers", theirs.layers);
  ours.norm = theirs.norm;
  if (!ours.norm.is_empty()) {
    ours.register_module("norm", ours.norm.ptr());
  }
}

template <typename Activation>
torch::Tensor activated(const Activation& activation, const torch::Tensor& x) {
  if (std::holds_alternative<torch::enumtype::kGELU>(activation)) {
    return torch::nn::functional::gelu(x);
  }
  if (std::holds_alternative<torch::enumtype::kReLU>(activation)) {
    return torch::nn::functional::relu(x);
  }
  return std::get<std::function<torch::Tensor(const torch::Tensor&)>>(
      activation)(x);
}

template <typename Layer>
torch::Tensor feed_forward(Layer& layer, const torch::Tensor& x) {
  const auto hidden = activated(layer.options.activation(), layer.linear1(x));
  return layer.linear2(layer.dropout(hidden));
}

torch::Tensor forward_layer(
    torch::nn::TransformerEncoderLayerImpl& layer,
    const torch::Tensor& src,
    const torch::Tensor& mask,
    const torch::Tensor& padding) {
  const auto attended = attend(layer.self_attn, src, src, src, padding, mask);
  const auto x = layer.norm1(src + layer.dropout1(attended));
  return layer.norm2(x + layer.dropout2(feed_forward(layer, x)));
}

/// The masks of the target or the memory.
struct Masks {
  torch::Tensor mask;
  torch::Tensor padding;
};

torch::Tensor forward_layer(
    torch::nn::TransformerDecoderLayerImpl& layer,
    const torch::Tensor& tgt,
    const torch::Tensor& memory,
    const Masks& of_tgt,
    const Masks& of_memory) {
  const auto attended =
      attend(layer.self_attn, tgt, tgt, tgt, of_tgt.padding, of_tgt.mask);
  auto x = layer.norm1(tgt + layer.dropout1(attended));
  const auto seen = attend(
      layer.multihead_attn,
      x,
      memory,
      memory,
      of_memory.padding,
      of_memory.mask);
  x = layer.norm2(x + layer.dropout2(seen));
  return layer.norm3(x + layer.dropout3(feed_forward(layer, x)));
}

template <typename Coder>
torch::Tensor normalized(Coder& coder, const torch::Tensor& x) {
  return coder.norm.is_empty() ? x
                               : coder.norm.template forward<torch::Tensor>(x);
}

} // namespace

SwappedTransformerEncoderImpl::SwappedTransformerEncoderImpl(
    const torch::nn::TransformerEncoderImpl& theirs)
    : TransformerEncoderImpl(without_layers(theirs.options)) {
  share_layers(*this, theirs);
}

torch::Tensor SwappedTransformerEncoderImpl::forward(
    const torch::Tensor& src,
    const torch::Tensor& src_mask,
    const torch::Tensor& src_key_padding_mask) {
  auto x = src;
  for (const auto& layer : *layers) {
    x = forward_layer(
        *layer->as<torch::nn::TransformerEncoderLayerImpl>(),
        x,
        src_mask,
        src_key_padding_mask);
  }
  return normalized(*this, x);
}

std::shared_ptr<torch::nn::Module> SwappedTransformerEncoderImpl::clone(
    const std::optional<torch::Device>& device) const {
  const auto copy = TransformerEncoderImpl::clone(device);
  return std::make_shared<SwappedTransformerEncoderImpl>(
      dynamic_cast<const torch::nn::TransformerEncoderImpl&>(*copy));
}

SwappedTransformerDecoderImpl::SwappedTransformerDecoderImpl(
    const torch::nn::TransformerDecoderImpl& theirs)
    : TransformerDecoderImpl(without_layers(theirs.options)) {
  share_layers(*this, theirs);
}

torch::Tensor SwappedTransformerDecoderImpl::forward(
    const torch::Tensor& tgt,
    const torch::Tensor& memory,
    const torch::Tensor& tgt_mask,
    const torch::Tensor& memory_mask,
    const torch::Tensor& tgt_key_padding_mask,
    const torch::Tensor& memory_key_padding_mask) {
  auto x = tgt;
  for (const auto& layer : *layers) {
    x = forward_layer(
        *layer->as<torch::nn::TransformerDecoderLayerImpl>(),
        x,
        memory,
        {tgt_mask, tgt_key_padding_mask},
        {memory_mask, memory_key_padding_mask});
  }
  return normalized(*this, x);
}

std::shared_ptr<torch::nn::Module> SwappedTransformerDecoderImpl::clone(
    const std::optional<torch::Device>& device) const {
  const auto copy = TransformerDecoderImpl::clone(device);
  return std::make_shared<SwappedTransformerDecoderImpl>(
      dynamic_cast<const torch::nn::TransformerDecoderImpl&>(*copy));
}

} // namespace torch_attention
