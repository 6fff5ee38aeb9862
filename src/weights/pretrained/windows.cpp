// Models in which some layers have a window.

#include <weights/pretrained/describe.h>

#include <check.h>

#include <algorithm>
#include <array>
#include <cstddef>

namespace torch_attention::weights::pretrained {

namespace {

/// Layers with full attention have no rotary embedding.
void describe_cohere2(Layer& layer) {
  auto& config = layer.config;
  TORCH_ATTENTION_CHECK(
      config.text("position_embedding_type").value_or("rope_gptj") ==
              "rope_gptj" &&
          config.number("rotary_pct").value_or(1) == 1,
      "expected position_embedding_type = \"rope_gptj\" and rotary_pct = "
      "1 in \"{}\"",
      config.path());
  set_heads(layer);
  set_biases(layer);
  set_type_by_pattern(layer, 4);
  if (layer.options.window()) {
    set_rotary(layer, {}, RotaryPairing::kInterleaved);
  } else {
    ignore_rotary(layer.config);
  }
}

/// A type of layer without rotary parameters has no rotary embedding.
void describe_cohere_compass(Layer& layer) {
  auto& config = layer.config;
  set_heads(layer);
  set_biases(layer);
  set_type(layer, /*has_window=*/false);
  const auto parameters = config.object("rope_parameters");
  const bool is_by_type = parameters.get("sliding_attention").is_object() ||
      parameters.get("full_attention").is_object();
  if (is_by_type && !parameters.get(layer.type).is_object()) {
    ignore_rotary(config);
  } else if (is_by_type) {
    set_rotary_of_types(layer);
  } else {
    set_rotary(layer);
  }
}

/// The first layers may be dense, with another pattern of windows and a rotary
/// embedding.
void describe_cohere2_moe(Layer& layer) {
  auto& config = layer.config;
  // The class has this field but never reads it.
  config.forget("rope_scaling");
  set_heads(layer);
  set_biases(layer);
  const auto dense = config.integer("first_k_dense_replace").value_or(0);
  const auto dense_turn =
      config.integer("prefix_dense_sliding_window_pattern").value_or(1);
  const auto turn = config.integer("sliding_window_pattern").value_or(4);
  config.ignore("_sliding_window_pattern");
  TORCH_ATTENTION_CHECK(
      dense_turn > 0 && turn > 0,
      "expected prefix_dense_sliding_window_pattern > 0 and "
      "sliding_window_pattern > 0 in \"{}\"",
      config.path());
  const bool comes_first = layer.index < dense;
  set_type(
      layer,
      comes_first ? is_before_last_of(layer, dense_turn)
                  : (layer.index - dense + 1) % turn != 0);
  const bool is_dense = config.text_at("mlp_layer_types", layer.index)
                            .value_or(comes_first ? "dense" : "") == "dense";
  if (layer.options.window() || (is_dense && dense_turn == 1)) {
    set_rotary(layer, {}, RotaryPairing::kInterleaved);
  } else {
    ignore_rotary(config);
  }
}

/// Gemma 2 in an encoder, whose window is a radius, and in a decoder.
void describe_t5gemma(Layer& layer) {
  if (layer.is_cross) {
    layer.options.causal(false).window(std::nullopt).rotary(std::nullopt);
  } else if (layer.part == PretrainedPart::kEncoder) {
    see_radius(layer);
  }
}

/// EmbeddingGemma is not causal.
void set_gemma3_sides(Layer& layer) {
  if (!layer.config.flag("use_bidirectional_attention").value_or(false)) {
    return;
  }
  // With is_causal = false the class has windows of another size.
  TORCH_ATTENTION_CHECK(
      layer.config.flag("is_causal").value_or(true),
      "expected no is_causal = false beside use_bidirectional_attention "
      "in \"{}\"",
      layer.config.path());
  see_both_sides(layer);
}

void describe_smollm3(Layer& layer) {
  set_heads(layer);
  set_biases(layer);
  const auto interval = positive(layer.config, "no_rope_layer_interval", 4);
  const bool rotates = layer.config.integer_at("no_rope_layers", layer.index)
                           .value_or(is_before_last_of(layer, interval)) != 0;
  const bool uses_window =
      layer.config.flag("use_sliding_window").value_or(false);
  set_type(layer, uses_window && !rotates);
  layer.config.ignore("max_window_layers");
  if (rotates) {
    set_rotary(layer);
  } else {
    ignore_rotary(layer.config);
  }
}

/// The pattern is a number n, for full attention in every n-th layer, or a
/// string such as "LLLG", in which L stands for layers with a window.
bool slides_by_pattern(Layer& layer) {
  constexpr const char* kPattern = "sliding_window_pattern";
  if (layer.config.is_text(kPattern)) {
    const auto text = layer.config.text(kPattern).value_or("");
    const auto place = static_cast<size_t>(layer.index);
    return !text.empty() && text[place % text.size()] == 'L';
  }
  return is_before_last_of(layer, layer.config.integer(kPattern).value_or(4));
}

void set_exaone4_types(Layer& layer) {
  set_type(layer, !layer.config.has("layer_types") && slides_by_pattern(layer));
}

/// The window has one token more before a query than after it, or as many.
void set_t5gemma2_sides(Layer& layer) {
  layer.options.causal(false);
  if (const auto window = layer.options.window()) {
    layer.options.window((*window + 1) / 2).window_after(*window / 2);
  }
}

/// Each layer has two sizes of its window, with the token itself in both.
void set_moonshine_windows(Layer& layer) {
  constexpr std::array<std::array<int64_t, 2>, 6> kOfClass{
      {{16, 4}, {16, 4}, {16, 0}, {16, 0}, {16, 4}, {16, 4}}};
  constexpr auto* kField = "sliding_windows";
  auto& config = layer.config;
  const auto sizes = config.integers_at(kField, layer.index);
  const auto number = static_cast<size_t>(layer.index);
  const bool has_sizes =
      config.has(kField) ? sizes.size() == 2 : number < kOfClass.size();
  TORCH_ATTENTION_CHECK(
      has_sizes,
      "expected two sizes of layer {} in \"{}\" of \"{}\"",
      layer.index,
      kField,
      config.path());
  const auto before = sizes.empty() ? kOfClass[number][0] : sizes[0];
  const auto after = sizes.empty() ? kOfClass[number][1] : sizes[1];
  TORCH_ATTENTION_CHECK(
      before > 0 && after >= 0,
      "expected windows of at least the token itself in \"{}\" of \"{}\", but "
      "got {} and {} for layer {}",
      kField,
      config.path(),
      before,
      after,
      layer.index);
  layer.options.causal(false).window(before).window_after(
      std::max<int64_t>(after - 1, 0));
}

} // namespace

Describers window_describers() {
  return {
      {"set_t5gemma2_sides", set_t5gemma2_sides},
      {"set_moonshine_windows", set_moonshine_windows},
      {"describe_cohere2", describe_cohere2},
      {"describe_cohere_compass", describe_cohere_compass},
      {"describe_cohere2_moe", describe_cohere2_moe},
      {"describe_t5gemma", describe_t5gemma},
      {"set_gemma3_sides", set_gemma3_sides},
      {"describe_smollm3", describe_smollm3},
      {"set_exaone4_types", set_exaone4_types},
  };
}

} // namespace torch_attention::weights::pretrained
