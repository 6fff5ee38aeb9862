// GPT-2 and other decoders before Llama.

#include <weights/pretrained/describe.h>

#include <check.h>

namespace torch_attention::weights::pretrained {

namespace {

void set_gpt2_scale(Layer& layer) {
  auto& config = layer.config;
  const bool scaled = config.flag("scale_attn_weights").value_or(true);
  auto scale = scaled ? 1 / root_of_head_dim(layer) : 1.0;
  if (config.flag("scale_attn_by_inverse_layer_idx").value_or(false)) {
    scale /= static_cast<double>(layer.index + 1);
  }
  layer.options.scale(scale);
}

void set_gpt_neo_window(Layer& layer) {
  auto& config = layer.config;
  const auto type = config.text_at("attention_layers", layer.index);
  TORCH_ATTENTION_CHECK(
      type == "global" || type == "local",
      "expected global or local as \"attention_layers\" of \"{}\", but got "
      "\"{}\"",
      config.path(),
      type.value_or("none"));
  const auto window = config.integer("window_size").value_or(256);
  if (type == "local") {
    layer.options.window(window);
  }
}

void set_gptj_rotary(Layer& layer) {
  layer.options.rotary(RotaryOptions()
                           .dim(layer.config.integer("rotary_dim").value_or(64))
                           .pairing(RotaryPairing::kInterleaved));
}

/// Rows are in four blocks, for as many devices, each with queries, values and
/// keys.
void set_codegen_layout(Layer& layer) {
  constexpr int64_t kBlocks = 4;
  layer.layout = WeightLayout("codegen");
  layer.layout
      .interleave(
          "qkv_proj.weight",
          {"W_query.weight", "W_value.weight", "W_key.weight"},
          kBlocks)
      .rename("out_proj.weight", "out_proj.weight")
      .ignore("causal_mask")
      .ignore("bias")
      .ignore("masked_bias");
}

/// Only the last layer has an output bias, which the calling module adds.
void set_bias_of_last(Layer& layer) {
  const bool is_last =
      layer.index + 1 == layer.config.required_integer("num_hidden_layers");
  layer.options.out_bias(is_last);
}

void describe_falcon(Layer& layer) {
  auto& config = layer.config;
  const auto heads = layer.options.num_heads();
  const bool is_new = config.flag("new_decoder_architecture").value_or(false);
  const bool has_one_key = config.flag("multi_query").value_or(true);
  const auto of_field = config.integer("num_kv_heads").value_or(heads);
  const auto kv_heads = is_new ? of_field : has_one_key ? 1 : heads;
  layer.options.num_kv_heads(kv_heads);
  layer.layout = WeightLayout::gpt_neox(heads, kv_heads);
  // ALiBi in bfloat16 and divided by the root of head_dim is not computed.
  layer.needs_bias = config.flag("alibi").value_or(false);
  if (layer.needs_bias) {
    ignore_rotary(config);
  } else {
    set_rotary(layer);
  }
}

/// StarCoder and SantaCoder.
void describe_gpt_bigcode(Layer& layer) {
  auto& config = layer.config;
  if (!config.flag("scale_attn_weights").value_or(true)) {
    layer.options.scale(1.0);
  }
  // They change only the dtype of the scores, or are for other programs.
  config.ignore(
      {"attention_softmax_in_fp32",
       "scale_attention_softmax_in_fp32",
       "num_key_value_heads",
       "pre_allocate_kv_cache"});
  const auto heads = layer.options.num_heads();
  const bool has_one_key = config.flag("multi_query").value_or(true);
  layer.options.num_kv_heads(has_one_key ? 1 : heads);
  layer.layout = WeightLayout("gpt_bigcode");
  for (const std::string part : {".weight", ".bias"}) {
    layer.layout
        .interleave(
            "c_attn" + part,
            {"W_query" + part, "W_key" + part, "W_value" + part},
            has_one_key ? 1 : heads,
            {has_one_key ? heads : 1, 1, 1})
        .rename("c_proj" + part, "out_proj" + part);
  }
  layer.layout.ignore("bias").ignore("masked_bias");
}

void describe_mpt(Layer& layer) {
  auto inner = layer.config.nested("attn_config");
  const auto check = [&](bool holds, const char* field) {
    TORCH_ATTENTION_CHECK(
        holds,
        "\"{}\" of \"{}\" has a value that is not computed",
        field,
        inner.path());
  };
  check(inner.flag("alibi").value_or(true), "alibi");
  check(inner.number("alibi_bias_max").value_or(8) == 8, "alibi_bias_max");
  check(!inner.flag("qk_ln").value_or(false), "qk_ln");
  check(!inner.flag("prefix_lm").value_or(false), "prefix_lm");
  check(
      inner.text("attn_type").value_or("multihead_attention") ==
          "multihead_attention",
      "attn_type");
  inner.ignore("attn_impl");
  inner.ignore("attn_uses_sequence_id");
  layer.config.ignore("attn_config");
  layer.config.ignore("no_bias");
  layer.options.alibi(true)
      .out_bias(false)
      .dropout(inner.number("attn_pdrop").value_or(0))
      .scale(inner.number("softmax_scale"))
      .clip_qkv(inner.number("clip_qkv"));
  inner.check_no_more("mpt");
  layer.layout = joined_layout("mpt", "Wqkv", "out_proj");
}

} // namespace

Describers gpt_describers() {
  return {
      {"set_gpt2_scale", set_gpt2_scale},
      {"set_gpt_neo_window", set_gpt_neo_window},
      {"set_gptj_rotary", set_gptj_rotary},
      {"set_codegen_layout", set_codegen_layout},
      {"set_bias_of_last", set_bias_of_last},
      {"describe_falcon", describe_falcon},
      {"describe_gpt_bigcode", describe_gpt_bigcode},
      {"describe_mpt", describe_mpt},
  };
}

} // namespace torch_attention::weights::pretrained
