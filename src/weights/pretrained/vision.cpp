// Encoders of images whose rotary embedding has two dimensions: the caller
// gives its angles, as `rotary_from_pretrained` makes them.

#include <weights/pretrained/describe.h>

#include <format_text.h>

#include <c10/util/Exception.h>

#include <cmath>

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

/// Angles by rows and columns, with the theta of the configuration.
ImageRotary image_rotary_of(Layer& layer, double theta = 10000) {
  auto& config = layer.config;
  const auto parameters = config.object("rope_parameters");
  const auto type = parameters.get("rope_type").as_text().value_or("axial");
  TORCH_CHECK(
      type == "axial" || type == "default",
      format_text(
          "expected a rotary embedding of type axial in \"{}\", but got \"{}\"",
          config.path(),
          type));
  ImageRotary rotary;
  const auto given = parameters.get("rope_theta").as_number();
  rotary.theta = given.value_or(config.number("rope_theta").value_or(theta));
  TORCH_CHECK(
      rotary.theta > 0 && std::isfinite(rotary.theta),
      format_text(
          "expected rope_theta > 0 in \"{}\", but got {}",
          config.path(),
          rotary.theta));
  return rotary;
}

/// Angles of patches that come in squares, which are merged after the layers.
ImageRotary merged_rotary_of(Layer& layer) {
  auto& config = layer.config;
  auto rotary = image_rotary_of(layer);
  const auto positive = [&](const char* field, int64_t otherwise) {
    const auto value = config.integer(field).value_or(otherwise);
    TORCH_CHECK(
        value > 0,
        format_text(
            "expected {} > 0 in \"{}\", but got {}",
            field,
            config.path(),
            value));
    return value;
  };
  rotary.square = positive("spatial_merge_size", 2);
  if (config.has("window_size")) {
    rotary.window =
        positive("window_size", 1) / rotary.square / positive("patch_size", 14);
    TORCH_CHECK(
        rotary.window > 0,
        format_text(
            "expected a window_size of at least one square of patches in "
            "\"{}\"",
            config.path()));
  }
  return rotary;
}

} // namespace

/// Qwen2-VL and later.
void describe_qwen_vision(Layer& layer) {
  set_vision(layer, /*qkv_bias=*/true, /*out_bias=*/true);
  layer.layout = joined_layout("qwen_vision", "qkv", "proj");
  layer.image_rotary = merged_rotary_of(layer);
  // Qwen2.5-VL lists the layers that see all patches.
  constexpr auto* kFull = "fullatt_block_indexes";
  const auto index = layer.index;
  const bool sees_all = layer.config.has(kFull)
      ? layer.config.has_element(kFull, index)
      : index % 8 == 7 && index < 32;
  layer.has_image_windows = layer.image_rotary->window > 0 && !sees_all;
  // The mask says which images see each other.
  layer.config.ignore({"num_position_embeddings", "window_size", kFull});
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
  layer.image_rotary = merged_rotary_of(layer);
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
  auto rotary = image_rotary_of(layer);
  rotary.has_columns_first = true;
  rotary.first = 1;
  rotary.tokens_after = 1;
  layer.image_rotary = rotary;
  // For the layers that take images to text.
  layer.config.ignore("multi_modal_projector_bias");
}

/// Video-LLaMA 3 and, but for their angles, MLCD's kin: its own differ from
/// image to image, as patches are merged.
void describe_bart_vision(Layer& layer) {
  set_vision(layer, /*qkv_bias=*/true, /*out_bias=*/true);
  TORCH_CHECK(
      layer.config.integer("num_key_value_groups").value_or(1) == 1,
      format_text(
          "expected num_key_value_groups = 1 in \"{}\"", layer.config.path()));
  layer.layout = WeightLayout::bart();
}

void describe_mlcd(Layer& layer) {
  describe_bart_vision(layer);
  layer.image_rotary = image_rotary_of(layer);
  layer.image_rotary->learned = "class_pos_emb";
}

void describe_paddleocr_vision(Layer& layer) {
  describe_bart_vision(layer);
  layer.image_rotary = image_rotary_of(layer);
}

void describe_pixtral(Layer& layer) {
  set_vision(layer, /*qkv_bias=*/false, /*out_bias=*/false);
  layer.config.ignore("head_dim");
  layer.image_rotary = image_rotary_of(layer);
  layer.image_rotary->has_columns_between = true;
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
  layer.image_rotary = image_rotary_of(layer, /*theta=*/100);
  layer.image_rotary->goes_by_centers = true;
  constexpr int64_t kMostRegisters = 4096;
  const auto registers = config.integer("num_register_tokens").value_or(0);
  TORCH_CHECK(
      registers >= 0 && registers <= kMostRegisters,
      format_text(
          "expected num_register_tokens from 0 to {} in \"{}\", but got {}",
          kMostRegisters,
          config.path(),
          registers));
  layer.image_rotary->tokens_before = 1 + registers;
  // For training.
  config.ignore({"pos_embed_jitter", "pos_embed_rescale", "pos_embed_shift"});
}

} // namespace torch_attention::weights::pretrained
