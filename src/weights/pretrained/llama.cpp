// Llama, and models that differ from it by a few options.

#include <weights/pretrained/describe.h>

#include <check.h>

#include <cmath>
#include <optional>

namespace torch_attention::weights::pretrained {

namespace {

/// Released files have another name for the flag.
void describe_internlm3(Layer& layer) {
  auto& config = layer.config;
  set_heads(layer);
  set_biases(
      layer, config.contains("qkv_bias") ? "qkv_bias" : "attention_bias");
  config.ignore("bias");
  set_rotary(layer);
}

/// Released files have one layer for queries, keys and values.
void describe_sarvam_moe(Layer& layer) {
  WeightLayout released =
      joined_layout("sarvam_moe", "query_key_value", "dense");
  if (layer.config.flag("use_qk_norm").value_or(true)) {
    set_norm(layer, HeadNormOptions(), "rms_norm_eps");
    released.rename("query_layernorm.weight", "q_norm.weight")
        .rename("key_layernorm.weight", "k_norm.weight");
  }
  layer.others.emplace_back("layers.{}.attention", released);
}

/// Norms follow the rotary embedding.
void describe_hunyuan(Layer& layer) {
  auto& config = layer.config;
  config.ignore({"attention_head_dim", "use_qk_norm"});
  // Its type is dynamic, but it does not depend on the sequence length.
  double alpha = 1;
  for (const std::string object : {"rope_parameters", "rope_scaling"}) {
    const auto parameters = config.object(object);
    const auto found = parameters.get("alpha").as_number();
    if (!found) {
      continue;
    }
    const auto type = rope_type_of(parameters);
    TORCH_ATTENTION_CHECK(
        (type == "dynamic" || type == "xdrope") && *found > 0,
        "expected alpha > 0 in \"{}\", beside the rope_type dynamic, but got {} "
        "beside {}",
        config.path(),
        *found,
        type);
    alpha = *found;
    for (const auto* field :
         {"alpha",
          "beta_fast",
          "beta_slow",
          "factor",
          "mscale",
          "mscale_all_dim",
          "rope_type",
          "type"}) {
      config.drop(object, field);
    }
  }
  describe_as(layer, "llama");
  if (alpha != 1) {
    auto rotary = *layer.options.rotary();
    const auto dim = static_cast<double>(rotary.dim().value_or(0));
    rotary.theta(rotary.theta() * std::pow(alpha, dim / (dim - 2)));
    layer.options.rotary(rotary);
  }
  set_norm(layer, HeadNormOptions().after_rotary(true), "rms_norm_eps");
  rename_norms(layer, "query_layernorm", "key_layernorm");
}

void describe_minimax_m2(Layer& layer) {
  set_heads(layer);
  layer.options.out_bias(false);
  set_norm(
      layer, HeadNormOptions().scope(HeadNormScope::kAllHeads), "rms_norm_eps");
  // Released files have the number of rotated elements instead of the share.
  auto rules = with_partial(1);
  if (const auto dim = layer.config.integer("rotary_dim")) {
    rules.partial =
        static_cast<double>(*dim) / static_cast<double>(layer.head_dim());
  }
  set_rotary(layer, rules);
  TORCH_ATTENTION_CHECK(
      layer.config.integer_at("attn_type_list", layer.index).value_or(1) == 1,
      "layer {} of \"{}\" has linear attention, which is not computed",
      layer.index,
      layer.config.path());
  layer.config.ignore(
      {"layernorm_full_attention_beta",
       "layernorm_linear_attention_beta",
       "layernorm_mlp_beta",
       "qk_norm_type",
       "use_qk_norm",
       "use_routing_bias"});
}

/// Norms of OLMo 2 or Qwen 3; the rotary embedding is scaled in some layers.
void describe_molmo2(Layer& layer) {
  auto& config = layer.config;
  set_heads(layer);
  set_biases(layer);
  layer.options.out_bias(false);
  const auto type = config.text("qk_norm_type").value_or("qwen3");
  TORCH_ATTENTION_CHECK(
      type == "qwen3" || type == "olmo",
      "expected qwen3 or olmo as \"qk_norm_type\" of \"{}\", but got \"{}\"",
      config.path(),
      type);
  set_norm(
      layer,
      HeadNormOptions().scope(
          type == "olmo" ? HeadNormScope::kAllHeads : HeadNormScope::kHead),
      "rms_norm_eps");
  set_rotary(layer);
  constexpr auto* kScaled = "rope_scaling_layers";
  if (config.has(kScaled) && !config.has_element(kScaled, layer.index)) {
    layer.options.rotary(RotaryOptions()
                             .theta(layer.options.rotary()->theta())
                             .dim(layer.head_dim()));
  }
  layer.layout = joined_layout("molmo2", "att_proj", "attn_out");
  // In files of the whole model.
  layer.others.emplace_back("transformer.blocks.{}.self_attn", layer.layout);
}

void describe_phi3(Layer& layer) {
  set_heads(layer);
  TORCH_ATTENTION_CHECK(
      layer.config.integer("full_attn_mod").value_or(1) == 1,
      "expected full_attn_mod = 1 in \"{}\"",
      layer.config.path());
  layer.options.out_bias(false);
  layer.options.window(layer.config.integer("sliding_window"));
  layer.layout = WeightLayout("phi3")
                     .split(
                         "qkv_proj.weight",
                         {"W_query.weight", "W_key.weight", "W_value.weight"})
                     .rename("o_proj.weight", "out_proj.weight");
  set_rotary(layer, with_partial(1));
}

void describe_phimoe(Layer& layer) {
  // They replace LongRoPE's attention_factor.
  std::optional<double> mscale;
  for (const std::string object : {"rope_parameters", "rope_scaling"}) {
    const auto fields = layer.config.object(object);
    const auto& of_short = fields.get("short_mscale");
    const auto& of_long = fields.get("long_mscale");
    TORCH_ATTENTION_CHECK(
        of_short == of_long,
        "expected short_mscale = long_mscale in \"{}\"",
        layer.config.path());
    if (of_short.is_number()) {
      mscale = of_short.as_number();
    }
    layer.config.drop(object, "short_mscale");
    layer.config.drop(object, "long_mscale");
  }
  describe_as(layer, "llama");
  auto rotary = *layer.options.rotary();
  // The class computes frequencies without the length of the text.
  if (!rotary.long_factors().empty()) {
    rotary.long_factors(rotary.short_factors());
  }
  if (mscale) {
    rotary.attention_factor(mscale);
  }
  layer.options.rotary(rotary);
  layer.options.window(layer.config.integer("sliding_window"));
}

void describe_stablelm(Layer& layer) {
  set_heads(layer);
  set_biases(layer, "use_qkv_bias");
  layer.options.out_bias(false);
  if (layer.config.flag("qk_layernorm").value_or(false)) {
    set_norm(
        layer,
        HeadNormOptions(HeadNormKind::kLayer)
            .scope(HeadNormScope::kHeadWeights),
        "layer_norm_eps");
    layer.layout.stack("q_layernorm.norms.{}.weight", "q_norm.weight")
        .stack("k_layernorm.norms.{}.weight", "k_norm.weight");
  }
  auto rules = with_partial(0.25);
  rules.needs_even = true;
  set_rotary(layer, rules);
}

} // namespace

Describers llama_describers() {
  return {
      {"describe_internlm3", describe_internlm3},
      {"describe_sarvam_moe", describe_sarvam_moe},
      {"describe_hunyuan", describe_hunyuan},
      {"describe_minimax_m2", describe_minimax_m2},
      {"describe_molmo2", describe_molmo2},
      {"describe_phi3", describe_phi3},
      {"describe_phimoe", describe_phimoe},
      {"describe_stablelm", describe_stablelm},
  };
}

} // namespace torch_attention::weights::pretrained
