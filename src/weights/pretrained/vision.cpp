// Image encoders whose rotary embedding has two dimensions. The caller passes
// the angles, which `rotary_from_pretrained` computes.

#include <weights/pretrained/describe.h>

#include <check.h>

#include <cmath>

namespace torch_attention::weights::pretrained {

namespace {

/// Returns angles by rows and columns, with the configuration's theta.
ImageRotary image_rotary_of(Layer& layer, double theta = 10000) {
  auto& config = layer.config;
  const auto parameters = config.object("rope_parameters");
  const auto type = parameters.get("rope_type").as_text().value_or("axial");
  TORCH_ATTENTION_CHECK(
      type == "axial" || type == "default",
      "expected a rotary embedding of type axial in \"{}\", but got \"{}\"",
      config.path(),
      type);
  ImageRotary rotary;
  rotary.theta = parameters.get("rope_theta")
                     .as_number()
                     .value_or(config.number("rope_theta").value_or(theta));
  TORCH_ATTENTION_CHECK(
      rotary.theta > 0 && std::isfinite(rotary.theta),
      "expected rope_theta > 0 in \"{}\", but got {}",
      config.path(),
      rotary.theta);
  return rotary;
}

int64_t positive(ModelConfig& config, const char* field, int64_t otherwise) {
  const auto value = config.integer(field).value_or(otherwise);
  TORCH_ATTENTION_CHECK(
      value > 0,
      "expected {} > 0 in \"{}\", but got {}",
      field,
      config.path(),
      value);
  return value;
}

/// Returns angles for consecutive squares of patches, which are merged after
/// the layers.
ImageRotary merged_rotary_of(Layer& layer) {
  auto& config = layer.config;
  auto rotary = image_rotary_of(layer);
  rotary.square = positive(config, "spatial_merge_size", 2);
  if (config.has("window_size")) {
    rotary.window = positive(config, "window_size", 1) / rotary.square /
        positive(config, "patch_size", 14);
    TORCH_ATTENTION_CHECK(
        rotary.window > 0,
        "expected a window_size of at least one square of patches in "
        "\"{}\"",
        config.path());
  }
  return rotary;
}

/// Squares of patches are merged after the layers.
void set_merged_patches(Layer& layer) {
  layer.image_rotary = merged_rotary_of(layer);
}

/// Qwen2.5-VL lists the layers with full attention; the others have windows.
void set_qwen_vision_windows(Layer& layer) {
  layer.image_rotary = merged_rotary_of(layer);
  constexpr auto* kFull = "fullatt_block_indexes";
  const auto index = layer.index;
  const bool sees_all = layer.config.has(kFull)
      ? layer.config.has_element(kFull, index)
      : index % 8 == 7 && index < 32;
  layer.has_image_windows = layer.image_rotary->window > 0 && !sees_all;
}

/// The class rotates interleaved pairs as complex numbers.
void set_llama4_patches(Layer& layer) {
  auto rotary = image_rotary_of(layer);
  rotary.has_columns_first = true;
  rotary.first = 1;
  rotary.tokens_after = 1;
  layer.image_rotary = rotary;
}

void check_one_key_for_each_query(Layer& layer) {
  TORCH_ATTENTION_CHECK(
      layer.config.integer("num_key_value_groups").value_or(1) == 1,
      "expected num_key_value_groups = 1 in \"{}\"",
      layer.config.path());
}

void set_patches(Layer& layer) {
  layer.image_rotary = image_rotary_of(layer);
}

/// The token before the patches has learned angles.
void set_mlcd_patches(Layer& layer) {
  layer.image_rotary = image_rotary_of(layer);
  layer.image_rotary->learned = "class_pos_emb";
}

void set_pixtral_patches(Layer& layer) {
  layer.image_rotary = image_rotary_of(layer);
  layer.image_rotary->has_columns_between = true;
}

/// Tokens before the patches are not rotated: cosine 1 and sine 0.
void set_dinov3_patches(Layer& layer) {
  auto& config = layer.config;
  layer.image_rotary = image_rotary_of(layer, /*theta=*/100);
  layer.image_rotary->goes_by_centers = true;
  constexpr int64_t kMostRegisters = 4096;
  const auto registers = config.integer("num_register_tokens").value_or(0);
  TORCH_ATTENTION_CHECK(
      registers >= 0 && registers <= kMostRegisters,
      "expected num_register_tokens from 0 to {} in \"{}\", but got {}",
      kMostRegisters,
      config.path(),
      registers);
  layer.image_rotary->tokens_before = 1 + registers;
}

/// Pairs for columns are before those for rows.
void set_step_patches(Layer& layer) {
  layer.image_rotary = image_rotary_of(layer);
  layer.image_rotary->has_columns_first = true;
}

/// Most layers have windows as large as the table of position embeddings.
void set_muse_patches(Layer& layer) {
  auto& config = layer.config;
  set_step_patches(layer);
  layer.image_rotary->first = 1;
  layer.image_rotary->window = positive(config, "pos_emb_height", 32);
  const auto layers = config.required_integer("num_hidden_layers");
  const bool sees_all = (layer.index + 1) % 4 == 0 || layer.index + 1 == layers;
  const auto type =
      config.text_at("layer_types", layer.index)
          .value_or(sees_all ? "full_attention" : "window_attention");
  TORCH_ATTENTION_CHECK(
      type == "full_attention" || type == "window_attention",
      "expected full_attention or window_attention as \"layer_types\" of "
      "\"{}\", but got \"{}\" for layer {}",
      config.path(),
      type,
      layer.index);
  layer.has_image_windows = type == "window_attention";
}

/// Row and column 0 are those of the class token before the patches.
void set_inkling_patches(Layer& layer) {
  layer.image_rotary = merged_rotary_of(layer);
  layer.image_rotary->has_columns_first = true;
  layer.image_rotary->first = 1;
  layer.image_rotary->tokens_before = 1;
}

/// A third of the head each for time, rows and columns; the rest is not
/// rotated.
void set_minimax_patches(Layer& layer) {
  const auto pairs = layer.head_dim() / 3 / 2;
  TORCH_ATTENTION_CHECK(
      pairs > 0,
      "expected heads of at least 6 in \"{}\", but got {}",
      layer.config.path(),
      layer.head_dim());
  layer.image_rotary = merged_rotary_of(layer);
  layer.image_rotary->pairs = pairs;
  layer.image_rotary->pairs_of_time = pairs;
  auto rotary = *layer.options.rotary();
  layer.options.rotary(rotary.dim(2 * 3 * pairs));
}

/// Layers in the middle share keys among heads.
void set_sapiens_heads(Layer& layer) {
  auto& config = layer.config;
  const auto layers = config.required_integer("num_hidden_layers");
  const auto first = config.integer("num_first_full_attention_layers");
  const auto last = config.integer("num_last_full_attention_layers");
  const auto fewer = config.integer("num_key_value_attention_heads");
  const bool shares = layer.index >= first.value_or(8) &&
      layer.index < layers - last.value_or(8);
  layer.options.num_kv_heads(
      config.integer_at("num_key_value_heads_per_layer", layer.index)
          .value_or(shares ? fewer.value_or(8) : layer.options.num_heads()));
}

} // namespace

Describers vision_describers() {
  return {
      {"set_merged_patches", set_merged_patches},
      {"set_qwen_vision_windows", set_qwen_vision_windows},
      {"set_llama4_patches", set_llama4_patches},
      {"check_one_key_for_each_query", check_one_key_for_each_query},
      {"set_patches", set_patches},
      {"set_mlcd_patches", set_mlcd_patches},
      {"set_pixtral_patches", set_pixtral_patches},
      {"set_dinov3_patches", set_dinov3_patches},
      {"set_step_patches", set_step_patches},
      {"set_muse_patches", set_muse_patches},
      {"set_inkling_patches", set_inkling_patches},
      {"set_minimax_patches", set_minimax_patches},
      {"set_sapiens_heads", set_sapiens_heads},
  };
}

} // namespace torch_attention::weights::pretrained
