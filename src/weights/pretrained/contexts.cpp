// Attention whose context or mask the caller makes: latents, pooled patches,
// another image.

#include <weights/pretrained/describe.h>

#include <check.h>

namespace torch_attention::weights::pretrained {

namespace {

/// Both kinds of attention have queries and keys of `qk_channels`, and values
/// of `v_channels`. The one cross-attention comes before the layers.
void set_perceiver_sizes(Layer& layer) {
  auto& config = layer.config;
  const auto size = layer.options.d_in();
  const auto d_context = config.integer("d_model").value_or(768);
  const auto heads = layer.is_cross
      ? config.integer("num_cross_attention_heads").value_or(8)
      : layer.options.num_heads();
  const auto shape =
      config.text("cross_attention_shape_for_attention").value_or("kv");
  TORCH_ATTENTION_CHECK(
      shape == "kv" || shape == "q",
      "expected kv or q as \"cross_attention_shape_for_attention\" of \"{}\", "
      "but got \"{}\"",
      config.path(),
      shape);
  const auto keys =
      config.integer("qk_channels")
          .value_or(layer.is_cross && shape == "kv" ? d_context : size);
  const auto values = config.integer("v_channels").value_or(keys);
  config.ignore(
      {"cross_attention_widening_factor",
       "self_attention_widening_factor",
       "num_cross_attention_heads"});
  TORCH_ATTENTION_CHECK(
      heads > 0 && keys > 0 && values > 0 && keys % heads == 0 &&
          values % heads == 0,
      "expected qk_channels and v_channels that the number of heads of \"{}\" "
      "divides, but got {}, {} and {}",
      config.path(),
      keys,
      values,
      heads);
  layer.options.num_heads(heads)
      .head_dim(keys / heads)
      .value_dim(values / heads)
      .d_out(layer.is_cross ? size : values);
  if (layer.is_cross) {
    layer.d_context = d_context;
    TORCH_ATTENTION_CHECK(
        layer.index == 0,
        "expected layer 0 of \"{}\", whose one cross-attention comes before "
        "its layers, but got {}",
        config.path(),
        layer.index);
  }
}

/// Layers attend to the image's own points or to those of the other image.
void require_superglue_layer(Layer& layer) {
  const auto type = layer.config.text_at("gnn_layers_types", layer.index);
  TORCH_ATTENTION_CHECK(
      type == (layer.is_cross ? "cross" : "self"),
      "layer {} of \"{}\" is of the type \"{}\": {}",
      layer.index,
      layer.config.path(),
      type.value_or(""),
      layer.is_cross ? "attention_from_pretrained loads it"
                     : "cross_attention_from_pretrained loads it");
}

/// Patches have the outputs of several layers of the image encoder.
void set_molmo2_adapter_sizes(Layer& layer) {
  auto& config = layer.config;
  // The name in released files.
  const auto* field =
      config.has("vit_layers") ? "vit_layers" : "vision_feature_layer";
  const auto size = layer.options.d_in() * config.length(field).value_or(2);
  layer.options.d_in(size);
  layer.d_context = size;
}

/// Queries join the image before the last layers, in which they see what they
/// predict.
void set_eomt_mask(Layer& layer) {
  auto& config = layer.config;
  const auto layers = config.required_integer("num_hidden_layers");
  const auto blocks = config.integer("num_blocks").value_or(4);
  layer.needs_bias = layer.index >= layers - blocks;
  layer.bias_of_caller = "a mask that it predicts";
}

} // namespace

Describers context_describers() {
  return {
      {"set_perceiver_sizes", set_perceiver_sizes},
      {"require_superglue_layer", require_superglue_layer},
      {"set_molmo2_adapter_sizes", set_molmo2_adapter_sizes},
      {"set_eomt_mask", set_eomt_mask},
  };
}

} // namespace torch_attention::weights::pretrained
