// Encoders of images whose rotary embedding has two dimensions: the caller
// gives its angles.

#include <weights/pretrained/describe.h>

#include <format_text.h>

#include <c10/util/Exception.h>

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

/// Qwen2-VL and later.
void describe_qwen_vision(Layer& layer) {
  set_vision(layer, /*qkv_bias=*/true, /*out_bias=*/true);
  layer.layout = joined_layout("qwen_vision", "qkv", "proj");
  // The mask says which images and windows see each other.
  layer.config.ignore(
      {"num_position_embeddings", "window_size", "fullatt_block_indexes"});
}

/// Qwen2.5-Omni.
void describe_qwen_omni_vision(Layer& layer) {
  describe_qwen_vision(layer);
  layer.layout = linear_layers("qwen_omni_vision", "q", "k", "v", "proj");
}

void describe_glm4v_vision(Layer& layer) {
  set_vision(
      layer,
      layer.config.flag("attention_bias").value_or(false),
      /*out_bias=*/false);
  layer.layout = joined_layout("glm4v_vision", "qkv", "proj");
}

void describe_glm_ocr_vision(Layer& layer) {
  describe_glm4v_vision(layer);
  layer.options.out_bias(layer.options.qkv_bias());
  set_norm(layer, HeadNormOptions(), "rms_norm_eps");
}

/// The angles of pairs of neighbours, as complex numbers.
void describe_llama4_vision(Layer& layer) {
  set_vision(layer, /*qkv_bias=*/true, /*out_bias=*/true);
  layer.options.rotary(RotaryOptions().pairing(RotaryPairing::kInterleaved));
  // For the layers that take images to text.
  layer.config.ignore("multi_modal_projector_bias");
}

void describe_mlcd(Layer& layer) {
  set_vision(layer, /*qkv_bias=*/true, /*out_bias=*/true);
  TORCH_CHECK(
      layer.config.integer("num_key_value_groups").value_or(1) == 1,
      format_text(
          "expected num_key_value_groups = 1 in \"{}\"", layer.config.path()));
  layer.layout = WeightLayout::bart();
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
  // For training.
  config.ignore({"pos_embed_jitter", "pos_embed_rescale", "pos_embed_shift"});
}

} // namespace torch_attention::weights::pretrained
