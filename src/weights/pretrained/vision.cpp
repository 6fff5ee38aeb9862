// Image encoders that attend within windows of two dimensions, or whose rotary
// embedding has two dimensions. The caller divides the image, and passes the
// angles, which `rotary_from_pretrained` computes.

#include <weights/pretrained/describe.h>

#include <check.h>
#include <weights/pretrained/relative.h>

#include <cmath>

namespace torch_attention::weights::pretrained {

namespace {

/// Returns angles by rows and columns, with the configuration's theta.
ImageRotary image_rotary_of(Layer& layer, double theta = 10000) {
  auto& config = layer.config;
  const auto parameters = common_parameters(config);
  const auto type = rope_type_of(parameters);
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

/// Returns angles for consecutive squares of patches, which are merged after
/// the layers.
ImageRotary merged_rotary_of(Layer& layer) {
  auto& config = layer.config;
  auto rotary = image_rotary_of(layer);
  rotary.square = positive(config, "spatial_merge_size", 2);
  if (config.class_has("window_size")) {
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
  // The class reads rope_theta alone.
  config.forget("rope_parameters");
  config.forget("rope_scaling");
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

/// The first half of a head goes by columns, and the second by rows.
void set_gemma4_patches(Layer& layer) {
  layer.image_rotary = image_rotary_of(layer, /*theta=*/100);
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

/// Positions in a whole image are scaled to those in a window.
void set_sam3_windows(Layer& layer) {
  auto& config = layer.config;
  set_step_patches(layer);
  const auto side = positive(config, "window_size", 24);
  layer.image_rotary->scaled_side = side;
  constexpr auto* kGlobal = "global_attn_indexes";
  const bool sees_all = config.has(kGlobal)
      ? config.has_element(kGlobal, layer.index)
      : layer.index % 8 == 7 && layer.index < 32;
  if (!sees_all) {
    layer.windows = ImageWindowOptions(side, side);
  }
}

/// Every second layer of a stage rolls the image by half of a window.
void set_swin_windows(Layer& layer) {
  const auto side = positive(layer.config, "window_size", 7);
  layer.windows = ImageWindowOptions(side, side)
                      .shift(layer.index_in_stage % 2 == 1 ? side / 2 : 0);
  layer.needs_bias = true;
}

/// Adds products with distances in rows and columns, within a window of `side`
/// tokens or, if it is 0, in the whole image.
void add_image_positions(Layer& layer, int64_t side, const char* flag) {
  auto& config = layer.config;
  const auto patches = [&](int64_t axis) {
    const auto size = [&](const char* field) {
      const auto found = config.length(field) ? config.integer_at(field, axis)
                                              : config.integer(field);
      TORCH_ATTENTION_CHECK(
          found.value_or(0) > 0,
          "expected {} > 0 in \"{}\", but got {}",
          field,
          config.path(),
          found.value_or(0));
      return *found;
    };
    return size("image_size") / size("patch_size");
  };
  if (side > 0) {
    layer.windows = ImageWindowOptions(side, side);
  }
  if (config.flag(flag).value_or(false)) {
    layer.relative = relative_of(layer, RelativeKind::kRowsAndColumns)
                         .height(side > 0 ? side : patches(0))
                         .width(side > 0 ? side : patches(1));
  }
}

int64_t side_of_windows(Layer& layer) {
  const auto side = layer.config.integer("window_size").value_or(0);
  TORCH_ATTENTION_CHECK(
      side >= 0,
      "expected window_size >= 0 in \"{}\", but got {}",
      layer.config.path(),
      side);
  return side;
}

/// The field lists the layers without windows.
void set_sam_positions(Layer& layer) {
  auto& config = layer.config;
  constexpr auto* kGlobal = "global_attn_indexes";
  const auto side = side_of_windows(layer);
  const bool sees_all = config.has(kGlobal)
      ? config.has_element(kGlobal, layer.index)
      : layer.index % 3 == 2 && layer.index < 12;
  add_image_positions(layer, sees_all ? 0 : side, "use_rel_pos");
}

/// The field lists the layers with windows.
void set_vitdet_positions(Layer& layer) {
  const auto side = side_of_windows(layer);
  const bool has_window =
      layer.config.has_element("window_block_indices", layer.index);
  add_image_positions(
      layer, has_window ? side : 0, "use_relative_position_embeddings");
}

void set_seggpt_positions(Layer& layer) {
  add_image_positions(layer, 0, "use_relative_position_embeddings");
}

void set_lw_detr_windows(Layer& layer) {
  layer.has_image_windows =
      layer.config.has_element("window_block_indices", layer.index);
}

/// Layers whose output the model gives see the whole image, by default the last
/// one, and so do those after them.
void set_rf_detr_windows(Layer& layer) {
  constexpr auto* kOutputs = "out_indices";
  auto& config = layer.config;
  const auto count = config.length(kOutputs).value_or(0);
  TORCH_ATTENTION_CHECK(
      count > 0 || !config.has("out_features"),
      "expected \"{}\" beside out_features in \"{}\", which has none",
      kOutputs,
      config.path());
  const auto last = count > 0
      ? config.integer_at(kOutputs, count - 1).value_or(0)
      : kUnlimited;
  layer.has_image_windows =
      layer.index <= last && !config.has_element(kOutputs, layer.index);
}

} // namespace

Describers vision_describers() {
  return {
      {"set_lw_detr_windows", set_lw_detr_windows},
      {"set_rf_detr_windows", set_rf_detr_windows},
      {"set_sam_positions", set_sam_positions},
      {"set_seggpt_positions", set_seggpt_positions},
      {"set_vitdet_positions", set_vitdet_positions},
      {"set_sam3_windows", set_sam3_windows},
      {"set_swin_windows", set_swin_windows},
      {"set_merged_patches", set_merged_patches},
      {"set_qwen_vision_windows", set_qwen_vision_windows},
      {"set_llama4_patches", set_llama4_patches},
      {"check_one_key_for_each_query", check_one_key_for_each_query},
      {"set_patches", set_patches},
      {"set_mlcd_patches", set_mlcd_patches},
      {"set_pixtral_patches", set_pixtral_patches},
      {"set_dinov3_patches", set_dinov3_patches},
      {"set_step_patches", set_step_patches},
      {"set_gemma4_patches", set_gemma4_patches},
      {"set_muse_patches", set_muse_patches},
      {"set_inkling_patches", set_inkling_patches},
      {"set_minimax_patches", set_minimax_patches},
      {"set_sapiens_heads", set_sapiens_heads},
  };
}

} // namespace torch_attention::weights::pretrained
