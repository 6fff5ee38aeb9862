// The built-in layouts.

#include <torch_attention/weights/layout.h>

#include <check.h>

namespace torch_attention {

namespace {

/// Adds rules for the weight and bias of a linear layer.
void rename_linear(
    WeightLayout& layout,
    const std::string& file_layer,
    const std::string& canonical_layer) {
  layout.rename(file_layer + ".weight", canonical_layer + ".weight");
  layout.rename(file_layer + ".bias", canonical_layer + ".bias");
}

/// Returns a layout of four linear layers under other names; an empty `out`
/// means that there is no output projection.
WeightLayout layers_named(
    const std::string& name,
    const std::string& query,
    const std::string& key,
    const std::string& value,
    const std::string& out) {
  WeightLayout layout(name);
  rename_linear(layout, query, "W_query");
  rename_linear(layout, key, "W_key");
  rename_linear(layout, value, "W_value");
  if (!out.empty()) {
    rename_linear(layout, out, "out_proj");
  }
  return layout;
}

/// Adds rules for queries, keys and values in one tensor.
WeightLayout& split_projections(
    WeightLayout& layout,
    const std::string& weight,
    const std::string& bias,
    bool transposed = false) {
  return layout
      .split(
          weight,
          {"W_query.weight", "W_key.weight", "W_value.weight"},
          transposed)
      .split(bias, {"W_query.bias", "W_key.bias", "W_value.bias"});
}

/// Returns a layout with one layer for the rows of queries, then keys, then
/// values.
WeightLayout joined_named(
    const std::string& name,
    const std::string& joined,
    const std::string& out) {
  WeightLayout layout(name);
  split_projections(layout, joined + ".weight", joined + ".bias");
  if (!out.empty()) {
    rename_linear(layout, out, "out_proj");
  }
  return layout.zeros("out_proj.bias");
}

WeightLayout by_heads(
    const std::string& name,
    const std::string& joined,
    const std::string& out,
    int64_t num_heads,
    std::optional<int64_t> num_kv_heads) {
  const auto groups = num_kv_heads.value_or(num_heads);
  TORCH_ATTENTION_CHECK(
      groups > 0 && num_heads > 0 && num_heads % groups == 0,
      "WeightLayout::{}: expected num_heads > 0 that num_kv_heads > 0 "
      "divides, but got {} and {}",
      name,
      num_heads,
      groups);
  WeightLayout layout(name);
  for (const std::string part : {".weight", ".bias"}) {
    layout.interleave(
        joined + part,
        {"W_query" + part, "W_key" + part, "W_value" + part},
        groups,
        {num_heads / groups, 1, 1});
  }
  if (!out.empty()) {
    rename_linear(layout, out, "out_proj");
  }
  return layout;
}

} // namespace

WeightLayout WeightLayout::book() {
  return layers_named("book", "W_query", "W_key", "W_value", "out_proj")
      .rename("W_gate.weight", "W_gate.weight")
      .rename("W_gate.bias", "W_gate.bias")
      .rename("out_norm.weight", "out_norm.weight")
      .rename("out_norm.bias", "out_norm.bias")
      .rename("query_scale", "query_scale")
      .rename("q_norm.weight", "q_norm.weight")
      .rename("q_norm.bias", "q_norm.bias")
      .rename("k_norm.weight", "k_norm.weight")
      .rename("k_norm.bias", "k_norm.bias")
      .rename("W_pos.weight", "W_pos.weight")
      .rename("pos_bias_u", "pos_bias_u")
      .rename("pos_bias_v", "pos_bias_v")
      .rename("distance_embedding.weight", "distance_embedding.weight")
      .rename("W_pos_key.weight", "W_pos_key.weight")
      .rename("W_pos_key.bias", "W_pos_key.bias")
      .rename("W_pos_query.weight", "W_pos_query.weight")
      .rename("W_pos_query.bias", "W_pos_query.bias")
      .rename("relative_embeddings", "relative_embeddings")
      .rename("W_query_global.weight", "W_query_global.weight")
      .rename("W_query_global.bias", "W_query_global.bias")
      .rename("W_key_global.weight", "W_key_global.weight")
      .rename("W_key_global.bias", "W_key_global.bias")
      .rename("W_value_global.weight", "W_value_global.weight")
      .rename("W_value_global.bias", "W_value_global.bias")
      .rename("sinks", "sinks")
      .rename("mask", "mask");
}

WeightLayout WeightLayout::head_list() {
  return layers_named(
             "head_list",
             "heads.{}.W_query",
             "heads.{}.W_key",
             "heads.{}.W_value",
             "")
      .tie("heads.{}.mask", "mask");
}

WeightLayout WeightLayout::self_attention_v1() {
  return WeightLayout("self_attention_v1")
      .transpose("W_query", "W_query.weight")
      .transpose("W_key", "W_key.weight")
      .transpose("W_value", "W_value.weight");
}

WeightLayout WeightLayout::q_linear() {
  return layers_named(
      "q_linear", "q_linear", "k_linear", "v_linear", "out_proj");
}

WeightLayout WeightLayout::query_key_value() {
  return layers_named("query_key_value", "query", "key", "value", "proj")
      .ignore("tril");
}

WeightLayout WeightLayout::query_key_value_heads() {
  return layers_named(
             "query_key_value_heads",
             "heads.{}.query",
             "heads.{}.key",
             "heads.{}.value",
             "proj")
      .ignore("heads.{}.tril");
}

WeightLayout WeightLayout::value_as_key() {
  return layers_named("value_as_key", "query", "value", "value", "proj")
      .ignore("key.weight")
      .ignore("key.bias")
      .ignore("tril");
}

WeightLayout WeightLayout::value_as_key_heads() {
  return layers_named(
             "value_as_key_heads",
             "heads.{}.query",
             "heads.{}.value",
             "heads.{}.value",
             "proj")
      .ignore("heads.{}.key.weight")
      .ignore("heads.{}.key.bias")
      .ignore("heads.{}.tril");
}

WeightLayout WeightLayout::gpt2() {
  WeightLayout layout("gpt2");
  split_projections(
      layout, "c_attn.weight", "c_attn.bias", /*transposed=*/true);
  return layout.transpose("c_proj.weight", "out_proj.weight")
      .rename("c_proj.bias", "out_proj.bias")
      .ignore("bias") // the causal mask
      .ignore("masked_bias");
}

WeightLayout WeightLayout::nano_gpt() {
  WeightLayout layout("nano_gpt");
  split_projections(layout, "c_attn.weight", "c_attn.bias");
  return layout.rename("c_proj.weight", "out_proj.weight")
      .rename("c_proj.bias", "out_proj.bias")
      .ignore("bias") // the causal mask
      .zeros("out_proj.bias");
}

WeightLayout WeightLayout::bert() {
  return layers_named(
             "bert", "self.query", "self.key", "self.value", "output.dense")
      .outside("output.LayerNorm.gamma")
      .outside("output.LayerNorm.beta")
      .outside("output.LayerNorm.weight")
      .outside("output.LayerNorm.bias");
}

WeightLayout WeightLayout::llama() {
  return layers_named("llama", "q_proj", "k_proj", "v_proj", "o_proj")
      .ignore("rotary_emb.inv_freq")
      .zeros("out_proj.bias");
}

WeightLayout WeightLayout::bart() {
  return layers_named("bart", "q_proj", "k_proj", "v_proj", "out_proj")
      .zeros("W_key.bias") // Whisper
      .zeros("out_proj.bias");
}

WeightLayout WeightLayout::torch_multihead_attention() {
  WeightLayout layout("torch_multihead_attention");
  split_projections(layout, "in_proj_weight", "in_proj_bias");
  return layout.rename("q_proj_weight", "W_query.weight")
      .rename("k_proj_weight", "W_key.weight")
      .rename("v_proj_weight", "W_value.weight")
      .rename("out_proj.weight", "out_proj.weight")
      .rename("out_proj.bias", "out_proj.bias")
      .zeros("out_proj.bias");
}

WeightLayout WeightLayout::gpt_neox(
    int64_t num_heads,
    std::optional<int64_t> num_kv_heads) {
  auto layout =
      by_heads("gpt_neox", "query_key_value", "dense", num_heads, num_kv_heads);
  // Buffers that published files contain.
  return layout.ignore("bias")
      .ignore("masked_bias")
      .ignore("rotary_emb.inv_freq");
}

WeightLayout WeightLayout::qkv() {
  auto layout = joined_named("qkv", "qkv", "proj");
  for (const auto* out : {"out_proj", "o_proj", "out"}) {
    rename_linear(layout, out, "out_proj");
  }
  return layout.rename("q_norm.weight", "q_norm.weight")
      .rename("q_norm.bias", "q_norm.bias")
      .rename("k_norm.weight", "k_norm.weight")
      .rename("k_norm.bias", "k_norm.bias");
}

WeightLayout WeightLayout::wqkv() {
  auto layout = joined_named("wqkv", "Wqkv", "out_proj");
  rename_linear(layout, "Wo", "out_proj");
  return layout;
}

WeightLayout WeightLayout::to_q() {
  auto layout = layers_named("to_q", "to_q", "to_k", "to_v", "to_out.0");
  rename_linear(layout, "to_out", "out_proj");
  return layout.zeros("out_proj.bias");
}

WeightLayout WeightLayout::to_qkv() {
  auto layout = joined_named("to_qkv", "to_qkv", "to_out.0");
  rename_linear(layout, "to_out", "out_proj");
  return layout;
}

WeightLayout WeightLayout::q_k_v_o() {
  auto layout = layers_named("q_k_v_o", "q", "k", "v", "o");
  rename_linear(layout, "proj", "out_proj");
  rename_linear(layout, "out", "out_proj");
  return layout.zeros("out_proj.bias");
}

WeightLayout WeightLayout::gguf() {
  auto layout =
      layers_named("gguf", "attn_q", "attn_k", "attn_v", "attn_output");
  split_projections(layout, "attn_qkv.weight", "attn_qkv.bias")
      .rename("attn_sinks.weight", "sinks")
      .zeros("out_proj.bias");
  for (const std::string part : {".weight", ".bias"}) {
    layout.rename("attn_q_norm" + part, "q_norm" + part)
        .rename("attn_k_norm" + part, "k_norm" + part);
    // Attention has no path of its own in a block.
    for (const std::string layer :
         {"attn_norm",
          "attn_norm_2",
          "attn_output_norm",
          "exp_probs_b",
          "ffn_down",
          "ffn_down_exps",
          "ffn_down_shexp",
          "ffn_gate",
          "ffn_gate_exps",
          "ffn_gate_inp",
          "ffn_gate_inp_shexp",
          "ffn_gate_shexp",
          "ffn_gate_up_exps",
          "ffn_norm",
          "ffn_up",
          "ffn_up_exps",
          "ffn_up_shexp",
          "layer_output_norm",
          "layer_output_scale",
          "post_attention_norm",
          "post_ffw_norm",
          "post_ffw_norm_1",
          "post_ffw_norm_2",
          "pre_ffw_norm_2"}) {
      layout.outside(layer + part);
    }
  }
  return layout;
}

WeightLayout WeightLayout::linear_layers(
    const std::string& query,
    const std::string& key,
    const std::string& value,
    const std::string& out) {
  return layers_named("linear_layers", query, key, value, out)
      .zeros("out_proj.bias");
}

WeightLayout WeightLayout::joined(
    const std::string& joined,
    const std::string& out) {
  return joined_named("joined", joined, out);
}

WeightLayout WeightLayout::joined_by_heads(
    const std::string& joined,
    const std::string& out,
    int64_t num_heads,
    std::optional<int64_t> num_kv_heads) {
  return by_heads("joined_by_heads", joined, out, num_heads, num_kv_heads)
      .zeros("out_proj.bias");
}

std::vector<WeightLayout> WeightLayout::built_in() {
  return {
      book(),
      head_list(),
      self_attention_v1(),
      q_linear(),
      query_key_value(),
      query_key_value_heads(),
      value_as_key(),
      value_as_key_heads(),
      gpt2(),
      nano_gpt(),
      bert(),
      llama(),
      bart(),
      torch_multihead_attention(),
      qkv(),
      wqkv(),
      to_q(),
      to_qkv(),
      q_k_v_o(),
      gguf()};
}

} // namespace torch_attention
