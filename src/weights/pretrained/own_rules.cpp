// Models with a rule of their own: sinks, chunks and a temperature, windows to
// both sides, gates behind the heads, clipped projections.

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
  rules.theta = config.number("global_rope_theta").value_or(160000);
  rules.local_theta = config.number("local_rope_theta").value_or(10000);
  set_rotary(layer, rules);
  layer.layout = joined_layout("modernbert", "Wqkv", "Wo");
  for (const auto* field :
       {"decoder_bias",
        "deterministic_flash_attn",
        "norm_bias",
        "position_embedding_type"}) {
    config.ignore(field);
  }
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
      layer.options.temperature(TemperatureOptions(floor_scale).scale(scale));
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
  const auto beta = parameters.find("llama_4_scaling_beta");
  const auto length = parameters.find("original_max_position_embeddings");
  TORCH_CHECK(
      beta != parameters.end() && beta->is_number() &&
          length != parameters.end() && length->is_number_integer(),
      format_text(
          "expected llama_4_scaling_beta and original_max_position_embeddings in "
          "the rope_parameters of \"{}\"",
          config.path()));
  layer.options.temperature(TemperatureOptions(length->get<int64_t>())
                                .scale(beta->get<double>())
                                .offset(0));
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
  drop_sections(layer);
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
  for (const auto* field :
       {"attn_output_gate",
        "linear_conv_kernel_dim",
        "linear_key_head_dim",
        "linear_num_key_heads",
        "linear_num_value_heads",
        "linear_value_head_dim"}) {
    config.ignore(field);
  }
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
