#include <weights/pretrained/latent.h>

#include <check.h>
#include <format_text.h>
#include <weights/pretrained/models_file.h>
#include <weights/pretrained/rotary.h>
#include <weights/text.h>

#include <cmath>

namespace torch_attention::weights::pretrained {

namespace {

/// Returns the pairing of the rotary embedding of a model.
RotaryPairing pairing_of(ModelConfig& config, const std::string& latent) {
  const bool is_interleaved = latent == "in rope_interleave"
      ? config.flag("rope_interleave").value_or(true)
      : latent == "interleaved";
  return is_interleaved ? RotaryPairing::kInterleaved : RotaryPairing::kHalves;
}

/// The field with the configuration of the text model, in multimodal models.
constexpr auto* kText = "text_config";

/// Returns YaRN's factor of the scores.
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
  TORCH_ATTENTION_CHECK(
      is_latent_type(type),
      "expected a model with latent attention, one of {}, but got "
      "model_type \"{}\" in \"{}\"",
      list_text(latent_model_types(), ", "),
      type,
      config.path());
  config.set_defaults_of(type);
  config.take_layer(layer);
  config.check_layer(layer, config.required_integer("num_hidden_layers"));
  const auto size = config.required_integer("hidden_size");
  LatentAttentionOptions options(
      size,
      size,
      config.required_integer("max_position_embeddings"),
      config.required_integer("num_attention_heads"));
  options.query_rank(config.integer("q_lora_rank"))
      .kv_rank(config.integer("kv_lora_rank").value_or(options.kv_rank()))
      .nope_dim(config.integer("qk_nope_head_dim").value_or(options.nope_dim()))
      .rope_dim(config.integer("qk_rope_head_dim").value_or(options.rope_dim()))
      .value_dim(config.integer("v_head_dim").value_or(options.value_dim()))
      .bias(config.flag("attention_bias").value_or(false))
      .dropout(config.number("attention_dropout").value_or(0));
  // The class computes the angles for this head size; Sarvam's ignores it.
  const auto head_dim = config.integer("head_dim").value_or(options.rope_dim());
  TORCH_ATTENTION_CHECK(
      head_dim == options.rope_dim() || type == "sarvam_mla",
      "expected head_dim = qk_rope_head_dim = {} in \"{}\", but got {}",
      options.rope_dim(),
      config.path(),
      head_dim);
  auto rotary = rotary_of(config, "full_attention", options.rope_dim(), {});
  options.rotary(
      rotary.pairing(pairing_of(config, model_entries().at(type).latent)));
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
  const auto found = model_entries().find(model_type);
  return found != model_entries().end() && !found->second.latent.empty();
}

std::vector<std::string> latent_model_types() {
  std::vector<std::string> types;
  for (const auto& [type, entry] : model_entries()) {
    if (!entry.latent.empty()) {
      types.push_back(type);
    }
  }
  return types;
}

} // namespace torch_attention::weights::pretrained
