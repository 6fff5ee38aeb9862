// Encoders of images whose rotary embedding has two dimensions: the caller
// gives its angles.

#include <weights/pretrained/describe.h>

namespace torch_attention::weights::pretrained {

namespace {

void set_vision(Layer& layer, bool qkv_bias, bool out_bias) {
  layer.options.causal(false)
      .qkv_bias(qkv_bias)
      .out_bias(out_bias)
      .rotary(RotaryOptions())
      .dropout(layer.config.number("attention_dropout").value_or(0));
  layer.needs_rotary = true;
  ignore_rotary(layer.config);
}

} // namespace

/// Of Qwen2-VL and later.
void describe_qwen_vision(Layer& layer) {
  set_vision(layer, /*qkv_bias=*/true, /*out_bias=*/true);
  layer.layout = joined_layout("qwen_vision", "qkv", "proj");
  // Which images and windows see each other is the mask's.
  for (const auto* field :
       {"num_position_embeddings", "window_size", "fullatt_block_indexes"}) {
    layer.config.ignore(field);
  }
}

void describe_pixtral(Layer& layer) {
  set_vision(layer, /*qkv_bias=*/false, /*out_bias=*/false);
  layer.config.ignore("head_dim");
}

/// Tokens before those of patches are not rotated: cosine 1 and sine 0.
void describe_dinov3(Layer& layer) {
  auto& config = layer.config;
  set_vision(
      layer,
      config.flag("query_bias").value_or(false),
      config.flag("proj_bias").value_or(false));
  layer.options.key_bias(config.flag("key_bias").value_or(false))
      .value_bias(config.flag("value_bias").value_or(false));
  // Of training.
  for (const auto* field :
       {"pos_embed_jitter", "pos_embed_rescale", "pos_embed_shift"}) {
    config.ignore(field);
  }
}

} // namespace torch_attention::weights::pretrained
