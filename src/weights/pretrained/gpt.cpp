// GPT-2 and the decoders of its time.

#include <weights/pretrained/describe.h>

#include <format_text.h>

#include <c10/util/Exception.h>

namespace torch_attention::weights::pretrained {

namespace {

/// With the buffers that released files of GPT-Neo and GPT-J hold.
WeightLayout layout_with_masks() {
  auto layout = WeightLayout::bart();
  layout.ignore("bias").ignore("masked_bias");
  return layout;
}

void set_dropout(Layer& layer, const char* field) {
  layer.options.dropout(layer.config.number(field).value_or(0));
}

void set_all_biases(Layer& layer, bool bias) {
  layer.options.qkv_bias(bias).out_bias(bias);
}

} // namespace

void describe_gpt2(Layer& layer) {
  auto& config = layer.config;
  layer.options.qkv_bias(true);
  set_dropout(layer, "attn_pdrop");
  const bool scaled = config.flag("scale_attn_weights").value_or(true);
  auto scale = scaled ? 1 / root_of_head_dim(layer) : 1.0;
  if (config.flag("scale_attn_by_inverse_layer_idx").value_or(false)) {
    scale /= static_cast<double>(layer.index + 1);
  }
  layer.options.scale(scale);
  // Changes the dtype of the scores alone.
  config.ignore("reorder_and_upcast_attn");
  layer.layout = WeightLayout::gpt2();
}

void describe_openai_gpt(Layer& layer) {
  layer.options.qkv_bias(true);
  set_dropout(layer, "attn_pdrop");
  layer.layout = WeightLayout::gpt2();
}

void describe_gpt_neo(Layer& layer) {
  auto& config = layer.config;
  layer.options.dropout(config.number("attention_dropout").value_or(0))
      .scale(1.0);
  config.ignore("attention_types");
  const auto type = config.text_at("attention_layers", layer.index);
  TORCH_CHECK(
      type == "global" || type == "local",
      format_text(
          "expected global or local as \"attention_layers\" of \"{}\", but got "
          "\"{}\"",
          config.path(),
          type.value_or("none")));
  const auto window = config.integer("window_size").value_or(256);
  if (type == "local") {
    layer.options.window(window);
  }
  layer.layout = layout_with_masks();
}

void describe_gptj(Layer& layer) {
  auto& config = layer.config;
  // Without effect in the model.
  config.ignore("rotary");
  config.ignore("scale_attn_weights");
  set_dropout(layer, "attn_pdrop");
  layer.options.out_bias(false).rotary(
      RotaryOptions()
          .dim(config.integer("rotary_dim").value_or(64))
          .pairing(RotaryPairing::kInterleaved));
  layer.layout = layout_with_masks();
}

/// Rows come in four blocks, for as many devices, each of queries, values and
/// keys.
void describe_codegen(Layer& layer) {
  constexpr int64_t kBlocks = 4;
  describe_gptj(layer);
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

void describe_opt(Layer& layer) {
  set_dropout(layer, "attention_dropout");
  set_all_biases(layer, layer.config.flag("enable_bias").value_or(true));
  layer.layout = WeightLayout::bart();
}

void describe_xglm(Layer& layer) {
  set_dropout(layer, "attention_dropout");
  set_all_biases(layer, true);
  layer.layout = WeightLayout::bart();
}

void describe_biogpt(Layer& layer) {
  set_dropout(layer, "attention_probs_dropout_prob");
  set_all_biases(layer, true);
  layer.layout = WeightLayout::bart();
}

void describe_bloom(Layer& layer) {
  set_dropout(layer, "attention_dropout");
  set_all_biases(layer, true);
  layer.options.alibi(true);
  layer.layout = WeightLayout::gpt_neox(layer.options.num_heads());
  // For the training program.
  layer.config.ignore(
      {"apply_residual_connection_post_layernorm",
       "attention_softmax_in_fp32",
       "bias_dropout_fusion",
       "offset_alibi",
       "skip_bias_add",
       "skip_bias_add_qkv",
       "masked_softmax_fusion"});
}

namespace {

/// The theta and the share have names of their own beside the parameters.
void set_neox_rotary(Layer& layer, double share) {
  auto rules = with_partial(share);
  rules.theta_field = "rotary_emb_base";
  rules.partial_field = "rotary_pct";
  // Without effect in the model.
  layer.config.ignore({"rope_theta", "partial_rotary_factor"});
  set_rotary(layer, rules);
}

} // namespace

void describe_gpt_neox(Layer& layer) {
  auto& config = layer.config;
  set_dropout(layer, "attention_dropout");
  set_all_biases(layer, config.flag("attention_bias").value_or(true));
  layer.layout = WeightLayout::gpt_neox(layer.options.num_heads());
  set_neox_rotary(layer, 0.25);
}

/// Only the last layer has a bias, which its caller adds.
void describe_gpt_neox_japanese(Layer& layer) {
  auto& config = layer.config;
  const bool is_last =
      layer.index + 1 == config.required_integer("num_hidden_layers");
  set_dropout(layer, "attention_dropout");
  layer.options.out_bias(is_last);
  layer.layout = WeightLayout::gpt_neox(layer.options.num_heads());
  layer.layout.rename("dense_bias", "out_proj.bias");
  set_neox_rotary(layer, 1);
}

void describe_falcon(Layer& layer) {
  auto& config = layer.config;
  set_dropout(layer, "attention_dropout");
  set_all_biases(layer, config.flag("bias").value_or(false));
  const auto heads = layer.options.num_heads();
  const bool is_new = config.flag("new_decoder_architecture").value_or(false);
  const bool has_one_key = config.flag("multi_query").value_or(true);
  const auto of_field = config.integer("num_kv_heads").value_or(heads);
  const auto kv_heads = is_new ? of_field : has_one_key ? 1 : heads;
  layer.options.num_kv_heads(kv_heads);
  layer.layout = WeightLayout::gpt_neox(heads, kv_heads);
  config.ignore("parallel_attn");
  config.ignore("num_ln_in_parallel_attn");
  // ALiBi in bfloat16, divided by the root of head_dim: the caller's.
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
  set_dropout(layer, "attn_pdrop");
  set_all_biases(layer, true);
  if (!config.flag("scale_attn_weights").value_or(true)) {
    layer.options.scale(1.0);
  }
  // Change the dtype of the scores alone, or are for other programs.
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
    TORCH_CHECK(
        holds,
        format_text(
            "\"{}\" of \"{}\" has a value that is not computed",
            field,
            inner.path()));
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

/// CTRL's have names of their own.
void describe_ctrl(Layer& layer) {
  set_all_biases(layer, true);
  layer.layout = linear_layers("ctrl", "Wq", "Wk", "Wv", "dense");
}

/// Bark's first two models; their files hold the mask.
void describe_bark(Layer& layer) {
  set_all_biases(layer, layer.config.flag("bias").value_or(true));
  set_dropout(layer, "dropout");
  layer.layout = joined_layout("bark", "att_proj", "out_proj");
  layer.layout.ignore("bias");
}

/// Bark's third.
void describe_bark_fine(Layer& layer) {
  describe_bark(layer);
  layer.options.causal(false);
}

} // namespace torch_attention::weights::pretrained
