// Models with rare options: chunks and a temperature, windows to both sides,
// output gates, clipped projections, norms of values.

#include <weights/pretrained/describe.h>

#include <check.h>

#include <cmath>

namespace torch_attention::weights::pretrained {

namespace {

void set_flint_types(Layer& layer) {
  const bool is_last =
      layer.index + 1 == layer.config.required_integer("num_hidden_layers");
  set_type(layer, layer.index > 1 && layer.index % 4 != 1 && !is_last);
}

/// A theta per layer; 0 means no rotary embedding.
void set_theta_of_layer(Layer& layer) {
  const auto theta = layer.config.number_at("layer_rope_theta", layer.index);
  if (theta) {
    auto rotary = *layer.options.rotary();
    layer.options.rotary(
        *theta == 0 ? std::nullopt
                    : std::optional<RotaryOptions>(rotary.theta(*theta)));
  }
}

void set_afmoe_types(Layer& layer) {
  set_type(
      layer,
      is_before_last_of(
          layer,
          layer.config.integer("global_attn_every_n_layers").value_or(4)));
}

/// Refuses the last layers of Gemma 3n and 4, which use the keys and values of
/// other layers.
void require_own_keys(Layer& layer) {
  auto& config = layer.config;
  const auto shared = config.integer("num_kv_shared_layers").value_or(0);
  const auto layers = config.required_integer("num_hidden_layers");
  TORCH_ATTENTION_CHECK(
      layer.index < layers - shared,
      "layer {} of \"{}\" takes the keys and values of another layer, which "
      "is not computed",
      layer.index,
      config.path());
}

/// Norms of queries, keys and values; scores are not scaled.
void set_gemma_norms(Layer& layer) {
  set_norm(layer, HeadNormOptions(), "rms_norm_eps");
  layer.options.scale(1.0).value_norm_eps(layer.options.qk_norm()->eps());
}

/// Layers with full attention have larger heads. They may have no projection of
/// values, which then are the keys before their norm.
void set_gemma4_heads(Layer& layer) {
  auto& config = layer.config;
  const bool sees_all = layer.type == "full_attention";
  const bool reuses_keys = config.flag("attention_k_eq_v").value_or(false);
  const auto all_dim = config.integer("global_head_dim").value_or(512);
  const auto all_heads = config.integer("num_global_key_value_heads");
  // `save_pretrained` writes the sizes of each layer to per_layer_config.
  if (sees_all && !config.contains("per_layer_config")) {
    layer.options.head_dim(all_dim);
    if (reuses_keys && all_heads) {
      layer.options.num_kv_heads(all_heads);
    }
  }
  if (sees_all && reuses_keys) {
    for (const auto& part : {std::string(".weight"), std::string(".bias")}) {
      layer.layout.rename("k_proj" + part, "W_value" + part);
    }
  }
}

void set_gemma4_sides(Layer& layer) {
  auto& config = layer.config;
  const bool sees_all = layer.type == "full_attention";
  // With "vision" the tokens of an image see each other in layers with a
  // window.
  const auto sides = config.text("use_bidirectional_attention").value_or("");
  if (sides == "all") {
    // The value in the file would override the class's.
    TORCH_ATTENTION_CHECK(
        !config.flag("is_causal").value_or(false),
        "expected no is_causal = true beside use_bidirectional_attention = "
        "\"all\" in \"{}\"",
        config.path());
    // One token more to each side than in Gemma 3.
    if (const auto window = layer.options.window()) {
      layer.options.window(*window / 2 + 1);
    }
    see_radius(layer);
  } else if (sides != "vision" || sees_all) {
    layer.options.block_scope(BlockScope::kNone);
  }
}

/// With "vision" the tokens of an image see each other in all layers, beyond
/// windows, too.
void set_gemma4_unified_blocks(Layer& layer) {
  if (layer.config.text("use_bidirectional_attention") == "vision") {
    layer.options.block_scope(
        layer.options.window() ? BlockScope::kWindow : BlockScope::kCausal);
  }
}

void set_embedding_gemma2_heads(Layer& layer) {
  auto& config = layer.config;
  // `save_pretrained` writes the sizes of each layer to per_layer_config.
  if (layer.type == "full_attention" && !config.contains("per_layer_config")) {
    layer.options.head_dim(config.integer("global_head_dim").value_or(512))
        .num_kv_heads(config.integer("num_global_key_value_heads").value_or(1));
  }
}

/// `local_attention` is the total size of the window to both sides;
/// `sliding_window`, if it is set, that of one side.
void set_modernbert_window(Layer& layer) {
  auto& config = layer.config;
  const auto turn = positive(config, "global_attn_every_n_layers", 3);
  set_type(layer, layer.index % turn != 0);
  const auto half = config.integer("local_attention").value_or(128) / 2;
  const auto side = config.integer("sliding_window").value_or(half);
  layer.options.causal(false);
  if (layer.type == "sliding_attention") {
    layer.options.window(side + 1).window_after(side);
  }
}

/// The window is half of `local_attention`, unless `sliding_window` is set.
void set_modernbert_decoder_window(Layer& layer) {
  auto& config = layer.config;
  const auto turn = positive(config, "global_attn_every_n_layers", 3);
  set_type(layer, layer.index % turn != 0);
  const auto half = config.integer("local_attention").value_or(128) / 2;
  if (layer.type == "sliding_attention" && !layer.options.window()) {
    layer.options.window(half);
  }
}

/// Layers with a rotary embedding have chunks; the others have full attention
/// with a temperature.
void describe_llama4(Layer& layer) {
  auto& config = layer.config;
  const auto interval = positive(config, "no_rope_layer_interval", 4);
  const bool rotates = config.integer_at("no_rope_layers", layer.index)
                           .value_or(is_before_last_of(layer, interval)) != 0;
  constexpr auto* kChunk = "attention_chunk_size";
  const auto chunk = config.contains(kChunk) ? config.integer(kChunk)
                                             : std::optional<int64_t>(8192);
  const auto type =
      config.text_at("layer_types", layer.index)
          .value_or(rotates && chunk ? "chunked_attention" : "full_attention");
  TORCH_ATTENTION_CHECK(
      type == "full_attention" || type == "chunked_attention",
      "expected full_attention or chunked_attention as \"layer_types\" of "
      "\"{}\", but got \"{}\" for layer {}",
      config.path(),
      type,
      layer.index);
  if (type == "chunked_attention") {
    TORCH_ATTENTION_CHECK(
        chunk.has_value(),
        "expected a number as {} of \"{}\", whose layer_types has chunks",
        kChunk,
        config.path());
    layer.options.chunk(chunk);
  }
  const auto floor_scale = config.integer("floor_scale").value_or(8192);
  const auto scale = config.number("attn_scale").value_or(0.1);
  const bool tunes = config.is_number("attn_temperature_tuning")
      ? config.number("attn_temperature_tuning").value_or(0) != 0
      : config.flag("attn_temperature_tuning").value_or(true);
  const bool normalises = config.flag("use_qk_norm").value_or(true);
  if (!rotates) {
    ignore_rotary(config);
    if (tunes) {
      layer.options.temperature(
          TemperatureOptions(floor_scale).scale(scale).by_order(true));
    }
    return;
  }
  if (normalises) {
    set_norm(
        layer,
        HeadNormOptions().weight(false).after_rotary(true),
        "rms_norm_eps");
  }
  set_rotary(layer, {}, RotaryPairing::kInterleaved);
}

void set_ministral3_temperature(Layer& layer) {
  layer.options.temperature(temperature_of(layer.config));
}

/// Layers with a window rotate; counted from the last, every fourth one has
/// neither. Queries have a factor after their norm, which has no weights.
void describe_muse_glimmer(Layer& layer) {
  auto& config = layer.config;
  const auto layers = config.required_integer("num_hidden_layers");
  const bool is_local = (layers - 1 - layer.index) % 4 != 0;
  set_type(layer, is_local);
  set_norm(layer, HeadNormOptions().weight(false), "rms_norm_eps");
  layer.options.scale(
      config.number("qk_scale_factor").value_or(3.87) /
      root_of_head_dim(layer));
  const auto theta = config.number_at("layer_rope_theta", layer.index);
  if (theta ? *theta != 0 : is_local) {
    set_rotary(layer);
  } else {
    ignore_rotary(config);
  }
}

/// Gates, queries, keys and values are one linear layer in files.
void set_hrm_layout(Layer& layer) {
  layer.options.qkv_bias(false).out_bias(false).output_gate(
      OutputGateOptions());
  layer.layout = WeightLayout("hrm_text");
  layer.layout
      .split(
          "gqkv_proj.weight",
          {"W_gate.weight", "W_query.weight", "W_key.weight", "W_value.weight"})
      .rename("o_proj.weight", "out_proj.weight");
}

/// Every fourth layer has attention.
void require_qwen3_next_attention(Layer& layer) {
  auto& config = layer.config;
  const auto turn = config.integer("full_attention_interval").value_or(4);
  const auto type = config.text_at("layer_types", layer.index);
  const bool has_attention =
      type ? *type == "full_attention" : !is_before_last_of(layer, turn);
  TORCH_ATTENTION_CHECK(
      has_attention,
      "layer {} of \"{}\" has linear attention, which is not computed",
      layer.index,
      config.path());
}

/// `q_proj` interleaves query and gate of each head.
void set_qwen3_next_gate(Layer& layer) {
  layer.options.output_gate(OutputGateOptions());
  const auto heads = layer.options.num_heads();
  WeightLayout layout("qwen3_next");
  for (const auto& part : {std::string(".weight"), std::string(".bias")}) {
    layout
        .interleave("q_proj" + part, {"W_query" + part, "W_gate" + part}, heads)
        .rename("k_proj" + part, "W_key" + part)
        .rename("v_proj" + part, "W_value" + part)
        .rename("o_proj" + part, "out_proj" + part);
  }
  layer.layout = layout;
}

/// Layers have their own numbers of heads, and gates of heads or elements.
void describe_laguna(Layer& layer) {
  auto& config = layer.config;
  const auto heads =
      config.integer_at("num_attention_heads_per_layer", layer.index);
  layer.options.num_heads(heads.value_or(layer.options.num_heads()));
  const bool is_text = config.is_text("gating");
  const auto gating = is_text ? config.text("gating").value_or("") : "";
  const bool of_heads =
      is_text ? gating == "per-head" : config.flag("gating").value_or(true);
  layer.options.output_gate(
      OutputGateOptions(of_heads ? GateScope::kHead : GateScope::kElement)
          .function(GateFunction::kSoftplus)
          .bias(false));
  layer.layout.rename("g_proj.weight", "W_gate.weight");
}

/// Layers with a window may have their own number of heads.
void describe_step3p5(Layer& layer) {
  auto& config = layer.config;
  for (const auto* older :
       {"rope_theta", "rope_scaling", "partial_rotary_factors"}) {
    TORCH_ATTENTION_CHECK(
        !config.contains(older),
        "expected rope_parameters of each type of layer in \"{}\", but got "
        "the older field {}",
        config.path(),
        older);
  }
  // The class has other parameters for all types where one of them has none.
  const auto parameters = config.object("rope_parameters");
  for (const auto* type : {"full_attention", "sliding_attention"}) {
    TORCH_ATTENTION_CHECK(
        !config.lists("layer_types", type) || parameters.get(type).is_object(),
        "expected rope_parameters of \"{}\", which layer_types of \"{}\" has",
        type,
        config.path());
  }
  const auto heads = config.integer("num_sliding_attention_heads");
  // `save_pretrained` writes the sizes of each layer to per_layer_config.
  if (layer.type == "sliding_attention" && heads &&
      !config.contains("per_layer_config")) {
    layer.options.num_heads(*heads);
  }
  if (const auto squared = config.number("query_pre_attn_scalar")) {
    layer.options.scale(1 / std::sqrt(*squared));
  }
}

/// Layers with a window have twice as many key heads, and sinks.
void describe_mimo_v2_flash(Layer& layer) {
  auto& config = layer.config;
  set_type(layer, layer.index != 0 && is_before_last_of(layer, 6));
  // The tokens before a query's own one, which take precedence.
  const auto before = config.integer("sliding_window_size");
  layer.options.value_dim(config.integer("v_head_dim"));
  if (layer.type == "sliding_attention") {
    const auto heads = config.integer("num_key_value_heads").value_or(4);
    layer.options.sinks(true).num_kv_heads(2 * heads);
    if (before) {
      layer.options.window(*before + 1);
    }
  }
}

/// The fields of attention are in `attn_config`.
void describe_dbrx(Layer& layer) {
  auto inner = layer.config.nested("attn_config");
  layer.options.num_kv_heads(inner.integer("kv_n_heads").value_or(1))
      .clip_qkv(inner.number("clip_qkv"))
      .out_bias(false)
      .dropout(inner.number("attn_pdrop").value_or(0));
  set_rotary(layer);
  // The class does not read the one that released files have here.
  const auto theta = layer.options.rotary()->theta();
  const auto inner_theta = inner.number("rope_theta").value_or(theta);
  TORCH_ATTENTION_CHECK(
      inner_theta == theta,
      "expected rope_theta = {} in attn_config of \"{}\", the one of all "
      "layers, but got {}: set it as rope_theta beside attn_config",
      theta,
      layer.config.path(),
      inner_theta);
  layer.config.ignore("num_key_value_heads");
  inner.check_no_more("dbrx");
  layer.layout = joined_layout("dbrx", "Wqkv", "out_proj");
}

} // namespace

Describers own_rule_describers() {
  return {
      {"set_flint_types", set_flint_types},
      {"set_theta_of_layer", set_theta_of_layer},
      {"set_afmoe_types", set_afmoe_types},
      {"make_last_full", make_last_full},
      {"require_own_keys", require_own_keys},
      {"set_gemma_norms", set_gemma_norms},
      {"set_gemma4_heads", set_gemma4_heads},
      {"set_gemma4_sides", set_gemma4_sides},
      {"set_gemma4_unified_blocks", set_gemma4_unified_blocks},
      {"set_embedding_gemma2_heads", set_embedding_gemma2_heads},
      {"set_modernbert_window", set_modernbert_window},
      {"set_modernbert_decoder_window", set_modernbert_decoder_window},
      {"describe_llama4", describe_llama4},
      {"set_ministral3_temperature", set_ministral3_temperature},
      {"describe_muse_glimmer", describe_muse_glimmer},
      {"set_hrm_layout", set_hrm_layout},
      {"require_qwen3_next_attention", require_qwen3_next_attention},
      {"set_qwen3_next_gate", set_qwen3_next_gate},
      {"describe_laguna", describe_laguna},
      {"describe_step3p5", describe_step3p5},
      {"describe_mimo_v2_flash", describe_mimo_v2_flash},
      {"describe_dbrx", describe_dbrx},
  };
}

} // namespace torch_attention::weights::pretrained
