#include <weights/pretrained/latent.h>

#include <format_text.h>
#include <weights/pretrained/rotary.h>
#include <weights/text.h>

#include <c10/util/Exception.h>

#include <cmath>
#include <map>
#include <optional>

namespace torch_attention::weights::pretrained {

namespace {

/// Sizes where a configuration does not say them.
struct LatentDefaults {
  int64_t query_rank;
  int64_t kv_rank;
  int64_t nope_dim;
  int64_t rope_dim;
  int64_t value_dim;
  RotaryPairing pairing = RotaryPairing::kInterleaved;
  /// True if `rope_interleave` chooses the pairing.
  bool reads_pairing = true;
};

const std::map<std::string, LatentDefaults>& latent_families() {
  static const std::map<std::string, LatentDefaults> table{
      {"axk1", {1536, 512, 128, 64, 128}},
      {"deepseek_v2",
       {1536, 512, 128, 64, 128, RotaryPairing::kInterleaved, false}},
      {"deepseek_v3", {1536, 512, 128, 64, 128}},
      {"glm4_moe_lite", {768, 512, 192, 64, 256}},
      {"kimi_k2", {1536, 512, 128, 64, 128}},
      {"kimi_k25", {1536, 512, 128, 64, 128}},
      {"minicpm3", {768, 256, 64, 32, 64, RotaryPairing::kHalves, false}},
      {"sarvam_mla", {0, 512, 128, 64, 128}},
      {"youtu", {1536, 512, 128, 64, 128}},
  };
  return table;
}

/// The configuration of the text of a model that sees images.
constexpr auto* kText = "text_config";

/// YaRN's part of the factor of the scores.
double scale_of_yarn(ModelConfig& config) {
  auto parameters = config.object("rope_parameters");
  if (parameters.fields().empty()) {
    parameters = config.object("rope_scaling");
  }
  const auto number = [&](const char* field) {
    return parameters.get(field).as_number().value_or(0);
  };
  const auto mscale = number("mscale_all_dim");
  return mscale == 0 ? 1.0 : std::pow(yarn_scale(number("factor"), mscale), 2);
}

} // namespace

DescribedLatent describe_latent(ModelConfig& config, int64_t layer) {
  if (config.has(kText)) {
    auto text = config.nested(kText);
    return describe_latent(text, layer);
  }
  const auto type = config.text("model_type").value_or("none");
  const auto found = latent_families().find(type);
  TORCH_CHECK(
      found != latent_families().end(),
      format_text(
          "expected a model with latent attention, one of {}, but got "
          "model_type \"{}\" in \"{}\"",
          list_text(latent_model_types(), ", "),
          type,
          config.path()));
  const auto& defaults = found->second;
  config.set_defaults_of(type);
  config.take_layer(layer);
  config.check_layer(layer, config.required_integer("num_hidden_layers"));
  const auto size = config.required_integer("hidden_size");
  LatentAttentionOptions options(
      size,
      size,
      config.required_integer("max_position_embeddings"),
      config.required_integer("num_attention_heads"));
  // Null means none.
  options.query_rank(
      config.contains("q_lora_rank")
          ? config.integer("q_lora_rank")
          : std::optional<int64_t>(defaults.query_rank));
  options.kv_rank(config.integer("kv_lora_rank").value_or(defaults.kv_rank))
      .nope_dim(config.integer("qk_nope_head_dim").value_or(defaults.nope_dim))
      .rope_dim(config.integer("qk_rope_head_dim").value_or(defaults.rope_dim))
      .value_dim(config.integer("v_head_dim").value_or(defaults.value_dim))
      .bias(config.flag("attention_bias").value_or(false))
      .dropout(config.number("attention_dropout").value_or(0));
  auto pairing = defaults.pairing;
  if (defaults.reads_pairing &&
      !config.flag("rope_interleave").value_or(true)) {
    pairing = RotaryPairing::kHalves;
  }
  // The class rotates by the angles of a head of this size; Sarvam's has no use
  // for the field.
  const auto head_dim = config.integer("head_dim").value_or(options.rope_dim());
  TORCH_CHECK(
      head_dim == options.rope_dim() || type == "sarvam_mla",
      format_text(
          "expected head_dim = qk_rope_head_dim = {} in \"{}\", but got {}",
          options.rope_dim(),
          config.path(),
          head_dim));
  auto rotary = rotary_of(config, "full_attention", options.rope_dim(), {});
  options.rotary(rotary.pairing(pairing));
  const auto yarn = scale_of_yarn(config);
  if (yarn != 1) {
    const auto all = options.nope_dim() + options.rope_dim();
    options.scale(yarn / std::sqrt(static_cast<double>(all)));
  }
  config.ignore(
      {"head_dim",
       "num_key_value_heads",
       "qk_head_dim",
       "routed_scaling_factor",
       "scale_depth",
       "scale_emb"});
  config.check_no_more(type);
  return {
      type, options, format_text("layers.{}.self_attn", std::to_string(layer))};
}

int64_t count_latent_layers(ModelConfig& config) {
  constexpr auto* kLayers = "num_hidden_layers";
  return config.has(kText) ? config.nested(kText).required_integer(kLayers)
                           : config.required_integer(kLayers);
}

bool is_latent_type(const std::string& model_type) {
  return latent_families().count(model_type) > 0;
}

std::vector<std::string> latent_model_types() {
  std::vector<std::string> types;
  for (const auto& [type, defaults] : latent_families()) {
    types.push_back(type);
  }
  return types;
}

} // namespace torch_attention::weights::pretrained
