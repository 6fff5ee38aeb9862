// Models that add positions to what queries and keys are made of, and not to
// what values are made of: DETR and those after it, and the decoders of masks
// of SAM.

#include <weights/pretrained/describe.h>

#include <check.h>

#include <string>

namespace torch_attention::weights::pretrained {

namespace {

/// The encoder is a list of lists of layers, one for each scale that is read;
/// it drops weights as often as other values. DEIMv2 has an encoder without
/// attention, too.
void set_scales(Layer& layer) {
  auto& config = layer.config;
  if (layer.part != PretrainedPart::kEncoder) {
    return;
  }
  // Other models ignore this field.
  TORCH_ATTENTION_CHECK(
      config.text("encoder_type").value_or("hybrid") == "hybrid",
      "expected \"hybrid\" as \"encoder_type\" of \"{}\", but got \"{}\", "
      "an encoder without attention",
      config.path(),
      config.text("encoder_type").value_or(""));
  const auto scales = config.length("encode_proj_layers").value_or(1);
  TORCH_ATTENTION_CHECK(
      scales == 1,
      "expected one element of \"encode_proj_layers\" of \"{}\" for its "
      "encoder, but got {}",
      config.path(),
      scales);
  layer.options.dropout(config.number("dropout").value_or(0));
  layer.others.emplace_back(
      "encoder.encoder.0.layers.{}.self_attn", layer.layout);
}

/// The encoder's layers that are loaded are those of the text, with half of the
/// heads. The decoder's cross-attention is to the text, which has no positions.
void set_grounding(Layer& layer) {
  if (layer.part == PretrainedPart::kEncoder) {
    layer.options.num_heads(layer.options.num_heads() / 2);
  }
  layer.options.needs_value_input(!layer.is_cross);
}

/// Cross-attention is a module of PyTorch.
void set_torch_cross(Layer& layer) {
  if (layer.is_cross) {
    layer.layout = WeightLayout::torch_multihead_attention();
    layer.needs_bias = true;
    layer.bias_of_caller = "the mask that the layer before predicts";
  }
}

/// Sets the heads of attention that is smaller than its tokens by the factor
/// `rate`.
void set_smaller_heads(Layer& layer, int64_t rate) {
  auto& options = layer.options;
  const auto heads = options.num_heads();
  const auto size = rate > 0 ? options.d_in() / rate : 0;
  TORCH_ATTENTION_CHECK(
      size > 0 && size % heads == 0,
      "expected num_attention_heads of \"{}\" to divide the size of "
      "cross-attention, but got {} and {}",
      layer.config.path(),
      heads,
      size);
  options.head_dim(size / heads);
}

/// The tokens of masks attend to themselves, in layer 0 without positions, and
/// to the image. SAM divides the size of the latter by 2, whatever the
/// configuration has, which is for the attention after the layers.
void set_sam_tokens(Layer& layer) {
  layer.config.ignore(
      {"attention_downsample_rate", "iou_head_depth", "iou_head_hidden_dim"});
  if (layer.is_cross) {
    set_smaller_heads(layer, 2);
  }
  layer.options.needs_value_input(layer.is_cross || layer.index > 0);
}

void set_sam2_tokens(Layer& layer) {
  set_sam_tokens(layer);
  if (layer.is_cross) {
    const auto rate = layer.config.integer("attention_downsample_rate");
    set_smaller_heads(layer, rate.value_or(2));
  }
}

} // namespace

Describers detr_describers() {
  return {
      {"set_grounding", set_grounding},
      {"set_sam2_tokens", set_sam2_tokens},
      {"set_sam_tokens", set_sam_tokens},
      {"set_scales", set_scales},
      {"set_torch_cross", set_torch_cross},
  };
}

} // namespace torch_attention::weights::pretrained
