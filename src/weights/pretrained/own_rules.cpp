// Models with a rule of their own: sinks, chunks and a temperature, windows to
// both sides, gates behind the heads, clipped projections, norms of values.

#include <weights/pretrained/describe.h>

#include <format_text.h>

#include <c10/util/Exception.h>

namespace torch_attention::weights::pretrained {

void describe_gpt_oss(Layer& layer) {
  set_heads(layer);
  set_biases(layer);
  set_type(layer, layer.index % 2 == 0);
  layer.options.sinks(true);
  set_rotary(layer);
}

/// Sinks; only layers with a window rotate. Files have the sinks under a name
/// of their own.
void describe_flint(Layer& layer) {
  auto& config = layer.config;
  set_heads(layer);
  set_biases(layer);
  const bool is_last =
      layer.index + 1 == config.required_integer("num_hidden_layers");
  set_type(layer, layer.index > 1 && layer.index % 4 != 1 && !is_last);
  set_norm(layer, HeadNormOptions(), "rms_norm_eps");
  layer.options.sinks(true);
  layer.layout.rename("softmax_offset", "sinks");
  if (layer.type == "sliding_attention") {
    set_rotary(layer);
  } else {
    ignore_rotary(config);
  }
}

/// Sees a window to both sides.
void describe_privacy_filter(Layer& layer) {
  set_heads(layer);
  set_biases(layer);
  layer.options.sinks(true).window(layer.config.integer("sliding_window"));
  see_radius(layer);
  set_rotary(layer, {}, RotaryPairing::kInterleaved);
}

/// Sinks, and a theta for each layer, 0 for one without positions.
void describe_granite_swa(Layer& layer) {
  auto& config = layer.config;
  set_heads(layer);
  set_biases(layer);
  set_type(layer, layer.index % 4 != 0);
  layer.options.sinks(true).scale(config.number("attention_multiplier"));
  set_rotary(layer);
  if (const auto theta = config.number_at("layer_rope_theta", layer.index)) {
    auto rotary = *layer.options.rotary();
    layer.options.rotary(
        *theta == 0 ? std::nullopt
                    : std::optional<RotaryOptions>(rotary.theta(*theta)));
  }
}

/// A gate, which has no bias, and a rotary embedding beside windows.
void describe_afmoe(Layer& layer) {
  auto& config = layer.config;
  set_heads(layer);
  set_biases(layer);
  set_type(
      layer,
      is_before_last_of(
          layer, config.integer("global_attn_every_n_layers").value_or(4)));
  set_norm(layer, HeadNormOptions(), "rms_norm_eps");
  layer.options.output_gate(true);
  layer.layout.rename("gate_proj.weight", "W_gate.weight");
  if (layer.options.qkv_bias()) {
    layer.layout.zeros("W_gate.bias");
  }
  config.ignore("route_scale");
  if (layer.type == "sliding_attention") {
    set_rotary(layer);
  } else {
    ignore_rotary(config);
  }
}

namespace {

/// The last layers of Gemma 3n and 4 project no keys and values.
void require_own_keys(Layer& layer) {
  auto& config = layer.config;
  const auto shared = config.integer("num_kv_shared_layers").value_or(0);
  const auto layers = config.required_integer("num_hidden_layers");
  TORCH_CHECK(
      layer.index < layers - shared,
      format_text(
          "layer {} of \"{}\" takes the keys and values of another layer, which "
          "is not computed",
          layer.index,
          config.path()));
}

/// Norms of queries, keys and values; scores are not scaled.
void set_gemma_norms(Layer& layer) {
  set_norm(layer, HeadNormOptions(), "rms_norm_eps");
  layer.options.scale(1.0).value_norm_eps(layer.options.qk_norm()->eps());
}

} // namespace

void describe_gemma3n(Layer& layer) {
  require_own_keys(layer);
  set_type_by_turn(layer, 5);
  set_heads(layer);
  set_biases(layer);
  set_gemma_norms(layer);
  set_gemma_rotary(layer);
  layer.config.ignore({"altup_coef_clip", "altup_correct_scale"});
}

/// Layers that see all tokens have larger heads, and may have no projection of
/// values: those are the keys before their norm.
void describe_gemma4(Layer& layer) {
  auto& config = layer.config;
  require_own_keys(layer);
  set_type_by_turn(layer, 6);
  make_last_full(layer);
  set_heads(layer);
  set_biases(layer);
  const bool sees_all = layer.type == "full_attention";
  const bool reuses_keys = config.flag("attention_k_eq_v").value_or(false);
  const auto all_dim = config.integer("global_head_dim").value_or(512);
  const auto all_heads = config.integer("num_global_key_value_heads");
  // `save_pretrained` writes sizes that differ by layer.
  if (sees_all && !config.contains("per_layer_config")) {
    layer.options.head_dim(all_dim);
    if (reuses_keys && all_heads) {
      layer.options.num_kv_heads(all_heads);
    }
  }
  if (sees_all && reuses_keys) {
    for (const std::string part : {".weight", ".bias"}) {
      layer.layout.rename("k_proj" + part, "W_value" + part);
    }
  }
  set_gemma_norms(layer);
  // "vision" is of the tokens of images, which see each other in layers with a
  // window.
  const auto sides = config.text("use_bidirectional_attention").value_or("");
  if (sides == "all") {
    // The class reads that of the file after its own.
    TORCH_CHECK(
        !config.flag("is_causal").value_or(false),
        format_text(
            "expected no is_causal = true beside use_bidirectional_attention = "
            "\"all\" in \"{}\"",
            config.path()));
    // One token more to each side than Gemma 3 sees.
    if (const auto window = layer.options.window()) {
      layer.options.window(*window / 2 + 1);
    }
    see_radius(layer);
  } else if (sides != "vision" || sees_all) {
    layer.options.block_scope(BlockScope::kNone);
  }
  set_rotary_of_types(layer);
}

/// An encoder of Gemma 4's kind. Its window is a radius.
void describe_embedding_gemma2(Layer& layer) {
  auto& config = layer.config;
  set_type_by_pattern(layer, 6);
  make_last_full(layer);
  set_heads(layer);
  set_biases(layer);
  // `save_pretrained` writes sizes that differ by layer.
  if (layer.type == "full_attention" && !config.contains("per_layer_config")) {
    layer.options.head_dim(config.integer("global_head_dim").value_or(512))
        .num_kv_heads(config.integer("num_global_key_value_heads").value_or(1));
  }
  set_gemma_norms(layer);
  see_radius(layer);
  set_rotary_of_types(layer);
}

/// `local_attention` counts the tokens to both sides.
void describe_modernbert(Layer& layer) {
  auto& config = layer.config;
  set_heads(layer);
  set_biases(layer);
  const auto turn = config.integer("global_attn_every_n_layers").value_or(3);
  set_type(layer, turn > 0 && layer.index % turn != 0);
  const auto side = config.integer("local_attention").value_or(128) / 2;
  layer.options.causal(false);
  if (layer.type == "sliding_attention") {
    layer.options.window(side + 1).window_after(side);
  }
  RotaryRules rules;
  rules.theta = 160000;
  rules.theta_field = "global_rope_theta";
  rules.by_type = {10000, "local_rope_theta", /*scales_sliding=*/true};
  set_rotary(layer, rules);
  layer.layout = joined_layout("modernbert", "Wqkv", "Wo");
  config.ignore(
      {"decoder_bias",
       "deterministic_flash_attn",
       "norm_bias",
       "position_embedding_type"});
}

/// Half of the tokens that `local_attention` counts, unless there is a window.
void describe_modernbert_decoder(Layer& layer) {
  auto& config = layer.config;
  set_biases(layer);
  const auto turn = config.integer("global_attn_every_n_layers").value_or(3);
  set_type(layer, turn > 0 && layer.index % turn != 0);
  const auto half = config.integer("local_attention").value_or(128) / 2;
  layer.options.dropout(config.number("attention_dropout").value_or(0));
  if (layer.type == "sliding_attention" && !layer.options.window()) {
    layer.options.window(half);
  }
  RotaryRules rules;
  rules.theta = 160000;
  rules.theta_field = "global_rope_theta";
  rules.by_type = {10000, "local_rope_theta", /*scales_sliding=*/true};
  set_rotary(layer, rules);
  layer.layout =
      linear_layers("modernbert-decoder", "q_proj", "k_proj", "v_proj", "Wo");
  config.ignore({"decoder_bias", "norm_bias"});
}

/// Layers with rotary embedding see their chunk; the others see all tokens,
/// with a temperature.
void describe_llama4(Layer& layer) {
  auto& config = layer.config;
  set_heads(layer);
  set_biases(layer);
  const auto interval = config.integer("no_rope_layer_interval").value_or(4);
  const bool rotates = config.integer_at("no_rope_layers", layer.index)
                           .value_or(is_before_last_of(layer, interval)) != 0;
  const auto type =
      config.text_at("layer_types", layer.index)
          .value_or(rotates ? "chunked_attention" : "full_attention");
  TORCH_CHECK(
      type == "full_attention" || type == "chunked_attention",
      format_text(
          "expected full_attention or chunked_attention as \"layer_types\" of "
          "\"{}\", but got \"{}\" for layer {}",
          config.path(),
          type,
          layer.index));
  const auto chunk = config.integer("attention_chunk_size").value_or(8192);
  if (type == "chunked_attention") {
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

/// Mistral, with a temperature that the parameters of the rotary embedding
/// have.
void describe_ministral3(Layer& layer) {
  auto& config = layer.config;
  const auto parameters = config.object("rope_parameters");
  const auto beta = parameters.get("llama_4_scaling_beta").as_number();
  const auto length =
      parameters.get("original_max_position_embeddings").as_integer();
  TORCH_CHECK(
      beta && length,
      format_text(
          "expected llama_4_scaling_beta and original_max_position_embeddings in "
          "the rope_parameters of \"{}\"",
          config.path()));
  layer.options.temperature(TemperatureOptions(*length).scale(*beta).offset(0));
  config.drop("rope_parameters", "llama_4_scaling_beta");
  config.drop("rope_parameters", "max_position_embeddings");
  describe_mistral(layer);
}

/// Every fourth layer, with a gate whose rows are those of the query's heads.
void describe_qwen3_next(Layer& layer) {
  auto& config = layer.config;
  const auto turn = config.integer("full_attention_interval").value_or(4);
  const auto type = config.text_at("layer_types", layer.index);
  const bool has_attention =
      type ? *type == "full_attention" : !is_before_last_of(layer, turn);
  TORCH_CHECK(
      has_attention,
      format_text(
          "layer {} of \"{}\" has linear attention, which is not computed",
          layer.index,
          config.path()));
  set_heads(layer);
  set_biases(layer);
  set_norm(layer, HeadNormOptions().unit_offset(true), "rms_norm_eps");
  layer.options.output_gate(true);
  set_rotary(layer, with_partial(0.25));
  const auto heads = layer.options.num_heads();
  WeightLayout layout("qwen3_next");
  for (const std::string part : {".weight", ".bias"}) {
    layout
        .interleave("q_proj" + part, {"W_query" + part, "W_gate" + part}, heads)
        .rename("k_proj" + part, "W_key" + part)
        .rename("v_proj" + part, "W_value" + part)
        .rename("o_proj" + part, "out_proj" + part);
  }
  layer.layout = layout;
  config.ignore("attn_output_gate");
  ignore_linear_attention(config);
}

/// The fields of attention are in an object of their own.
void describe_dbrx(Layer& layer) {
  auto inner = layer.config.nested("attn_config");
  layer.options.num_kv_heads(inner.integer("kv_n_heads").value_or(1))
      .clip_qkv(inner.number("clip_qkv"))
      .out_bias(false)
      .dropout(inner.number("attn_pdrop").value_or(0));
  RotaryRules rules;
  rules.theta = inner.number("rope_theta").value_or(rules.theta);
  set_rotary(layer, rules);
  layer.config.ignore("num_key_value_heads");
  inner.check_no_more("dbrx");
  layer.layout = joined_layout("dbrx", "Wqkv", "out_proj");
}

void describe_olmo(Layer& layer) {
  describe_llama(layer);
  layer.options.clip_qkv(layer.config.number("clip_qkv"));
}

void describe_olmoe(Layer& layer) {
  describe_olmo2(layer);
  layer.options.clip_qkv(layer.config.number("clip_qkv"));
}

} // namespace torch_attention::weights::pretrained
