// Models in which some layers see a window of tokens, and others all.

#include <weights/pretrained/describe.h>

#include <c10/util/Exception.h>

#include <cmath>

namespace torch_attention::weights::pretrained {

namespace {

/// A layer of Llama's kind without biases, with norms of each head if said so.
void describe_plain(Layer& layer, bool has_norms) {
  set_heads(layer);
  layer.options.out_bias(false);
  if (has_norms) {
    set_norm(layer, HeadNormOptions(), "rms_norm_eps");
  }
  set_rotary(layer);
}

} // namespace

/// All layers see the window, if there is any.
void describe_mistral(Layer& layer) {
  layer.options.window(layer.config.integer("sliding_window"));
  describe_plain(layer, /*has_norms=*/false);
}

void describe_ministral(Layer& layer) {
  set_type(layer, layer.config.has("sliding_window"));
  describe_plain(layer, /*has_norms=*/false);
}

/// Layers that see all tokens have no positions.
void describe_cohere2(Layer& layer) {
  auto& config = layer.config;
  TORCH_CHECK(
      config.text("position_embedding_type").value_or("rope_gptj") ==
              "rope_gptj" &&
          config.number("rotary_pct").value_or(1) == 1,
      "expected position_embedding_type = \"rope_gptj\" and rotary_pct = 1 in "
      "\"",
      config.path(),
      "\"");
  set_heads(layer);
  set_biases(layer);
  set_type_by_pattern(layer, 4);
  if (layer.options.window()) {
    set_rotary(layer, {}, RotaryPairing::kInterleaved);
  } else {
    ignore_rotary(layer.config);
  }
}

/// Types of layers without an entry among the parameters have no positions.
void describe_cohere_compass(Layer& layer) {
  auto& config = layer.config;
  set_heads(layer);
  set_biases(layer);
  set_type(layer, /*otherwise=*/false);
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

/// The first layers may be dense, with a pattern of their own and rotary
/// embedding.
void describe_cohere2_moe(Layer& layer) {
  auto& config = layer.config;
  // The class has the field, and never reads it.
  config.forget("rope_scaling");
  set_heads(layer);
  set_biases(layer);
  const auto dense = config.integer("first_k_dense_replace").value_or(0);
  const auto dense_turn =
      config.integer("prefix_dense_sliding_window_pattern").value_or(1);
  const auto turn = config.integer("sliding_window_pattern").value_or(4);
  config.ignore("_sliding_window_pattern");
  TORCH_CHECK(
      dense_turn > 0 && turn > 0,
      "expected prefix_dense_sliding_window_pattern > 0 and "
      "sliding_window_pattern > 0 in \"",
      config.path(),
      "\"");
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

void describe_cwm(Layer& layer) {
  constexpr int64_t kTurn = 4;
  set_type(layer, layer.index % kTurn != 0);
  describe_plain(layer, /*has_norms=*/false);
}

namespace {

/// The number of layers that see all tokens, before those with a window.
int64_t max_window_layers(Layer& layer) {
  return layer.config.integer("max_window_layers").value_or(28);
}

bool uses_window(Layer& layer) {
  return layer.config.flag("use_sliding_window").value_or(false);
}

void set_qwen_window(Layer& layer) {
  const auto full = max_window_layers(layer);
  set_type(layer, uses_window(layer) && layer.index >= full);
}

void set_qwen2_heads(Layer& layer) {
  set_heads(layer);
  layer.options.qkv_bias(layer.config.flag("qkv_bias").value_or(true));
  layer.options.out_bias(false);
}

} // namespace

void describe_dots1(Layer& layer) {
  set_heads(layer);
  set_biases(layer);
  const auto full = max_window_layers(layer);
  set_type(layer, layer.config.has("sliding_window") && layer.index >= full);
  set_norm(layer, HeadNormOptions(), "rms_norm_eps");
  set_rotary(layer);
}

void describe_qwen2(Layer& layer) {
  set_qwen2_heads(layer);
  set_qwen_window(layer);
  set_rotary(layer);
}

void describe_qwen2_moe(Layer& layer) {
  set_qwen2_heads(layer);
  const auto most = max_window_layers(layer);
  set_type(
      layer, uses_window(layer) && layer.index % 2 == 0 && layer.index < most);
  set_rotary(layer);
}

void describe_qwen3_vl(Layer& layer) {
  set_heads(layer);
  set_biases(layer);
  set_norm(layer, HeadNormOptions(), "rms_norm_eps");
  add_names_of_diffusers(layer);
  set_rotary(layer);
}

void describe_qwen3(Layer& layer) {
  set_heads(layer);
  set_biases(layer);
  set_qwen_window(layer);
  set_norm(layer, HeadNormOptions(), "rms_norm_eps");
  set_rotary(layer);
}

/// Fields about time place its tokens, and change no attention.
void describe_qwen2_talker(Layer& layer) {
  layer.config.ignore({"position_id_per_seconds", "seconds_per_chunk"});
  describe_qwen2(layer);
}

void describe_qwen3_moe(Layer& layer) {
  set_heads(layer);
  set_biases(layer);
  layer.config.ignore("max_window_layers");
  set_type(layer, uses_window(layer));
  set_norm(layer, HeadNormOptions(), "rms_norm_eps");
  set_rotary(layer);
}

void describe_mellum(Layer& layer) {
  set_heads(layer);
  set_biases(layer);
  set_type(layer, false);
  set_norm(layer, HeadNormOptions(), "rms_norm_eps");
  set_rotary_of_types(layer);
}

namespace {

void set_gemma_heads(Layer& layer) {
  set_heads(layer);
  set_biases(layer);
}

void refuse_both_sides(Layer& layer) {
  refuse_flag(
      layer,
      "use_bidirectional_attention",
      "attention to both sides is known of Gemma 3 alone");
}

void set_query_scalar(Layer& layer) {
  const auto scalar =
      layer.config.number("query_pre_attn_scalar").value_or(256);
  layer.options.scale(1 / std::sqrt(scalar));
}

} // namespace

void describe_gemma(Layer& layer) {
  set_gemma_heads(layer);
  refuse_both_sides(layer);
  set_rotary(layer);
}

void describe_gemma2(Layer& layer) {
  set_type(layer, layer.index % 2 == 0);
  describe_gemma(layer);
  set_query_scalar(layer);
  layer.options.softcap(layer.config.number("attn_logit_softcapping"));
  // Another name of the window, in released files.
  layer.config.ignore("sliding_window_size");
}

/// Gemma 2's in an encoder, whose window is a radius, and in a decoder.
void describe_t5gemma(Layer& layer) {
  describe_gemma2(layer);
  layer.d_context = layer.config.integer("cross_attention_hidden_size");
  if (layer.is_cross) {
    layer.options.causal(false).window(std::nullopt).rotary(std::nullopt);
  } else if (layer.part == PretrainedPart::kEncoder) {
    see_radius(layer);
  }
}

void describe_gemma3(Layer& layer) {
  set_type_by_pattern(layer, 6);
  set_gemma_heads(layer);
  // EmbeddingGemma.
  if (layer.config.flag("use_bidirectional_attention").value_or(false)) {
    // The class then has windows of another size.
    TORCH_CHECK(
        layer.config.flag("is_causal").value_or(true),
        "expected no is_causal = false beside use_bidirectional_attention in "
        "\"",
        layer.config.path(),
        "\"");
    see_both_sides(layer);
  }
  set_norm(layer, HeadNormOptions().unit_offset(true), "rms_norm_eps");
  set_query_scalar(layer);
  // Without effect in the model.
  layer.config.ignore("attn_logit_softcapping");
  set_gemma_rotary(layer);
}

void describe_olmo3(Layer& layer) {
  set_type(layer, is_before_last_of(layer, 4));
  set_heads(layer);
  set_biases(layer);
  set_norm(
      layer, HeadNormOptions().scope(HeadNormScope::kAllHeads), "rms_norm_eps");
  RotaryRules rules;
  // The class takes `rope_theta` for the layers that see all tokens alone.
  rules.theta = 500000;
  rules.by_type = {500000};
  set_rotary(layer, rules);
}

void describe_smollm3(Layer& layer) {
  set_heads(layer);
  set_biases(layer);
  const auto interval =
      layer.config.integer("no_rope_layer_interval").value_or(4);
  const bool rotates = layer.config.integer_at("no_rope_layers", layer.index)
                           .value_or(is_before_last_of(layer, interval)) != 0;
  set_type(layer, uses_window(layer) && !rotates);
  layer.config.ignore("max_window_layers");
  if (rotates) {
    set_rotary(layer);
  } else {
    ignore_rotary(layer.config);
  }
}

namespace {

/// By a number, of which every such layer sees all tokens, or a text such as
/// "LLLG", in which L stands for layers with a window.
bool slides_by_pattern(Layer& layer) {
  constexpr const char* kPattern = "sliding_window_pattern";
  if (layer.config.is_text(kPattern)) {
    const auto text = layer.config.text(kPattern).value_or("");
    const auto place = static_cast<size_t>(layer.index);
    return !text.empty() && text[place % text.size()] == 'L';
  }
  return is_before_last_of(layer, layer.config.integer(kPattern).value_or(4));
}

} // namespace

void describe_kolibri1(Layer& layer) {
  set_heads(layer);
  layer.options.out_bias(false);
  set_type(layer, is_before_last_of(layer, 5));
  set_norm(layer, HeadNormOptions(), "rms_norm_eps");
  if (layer.type == "sliding_attention" ||
      !layer.config.has("sliding_window")) {
    set_rotary(layer);
  } else {
    ignore_rotary(layer.config);
  }
}

void describe_exaone4(Layer& layer) {
  layer.config.ignore("sliding_window_pattern");
  set_heads(layer);
  layer.options.out_bias(false);
  set_type(layer, !layer.config.has("layer_types") && slides_by_pattern(layer));
  set_norm(layer, HeadNormOptions(), "rms_norm_eps");
  // Layers that see all tokens have no positions, beside those with a window.
  if (!layer.config.has("sliding_window") ||
      layer.type == "sliding_attention") {
    set_rotary(layer);
  } else {
    ignore_rotary(layer.config);
  }
}

/// Both stacks see a window of what was before.
void describe_mimi(Layer& layer) {
  auto& config = layer.config;
  set_heads(layer);
  set_biases(layer);
  layer.options.window(config.integer("sliding_window"));
  set_rotary(layer);
  // For the convolutions, and what is added to the stream.
  config.ignore({"use_causal_conv", "layer_scale_initial_scale"});
}

} // namespace torch_attention::weights::pretrained
