#include <weights/pretrained/latent.h>

#include <check.h>
#include <format_text.h>
#include <weights/pretrained/models_file.h>
#include <weights/pretrained/rotary.h>
#include <weights/text.h>

#include <algorithm>
#include <cmath>
#include <optional>

namespace torch_attention::weights::pretrained {

namespace {

/// Returns the pairing of a rotary embedding, which models.json has as `text`.
RotaryPairing pairing_of(ModelConfig& config, const std::string& text) {
  const bool is_interleaved = text == "in rope_interleave"
      ? config.flag("rope_interleave").value_or(true)
      : text == "interleaved";
  return is_interleaved ? RotaryPairing::kInterleaved : RotaryPairing::kHalves;
}

/// Returns whether a layer has an indexer of its own, as `GlmMoeDsaConfig`
/// derives it; otherwise it takes the keys that the one before it chose.
bool has_own_indexer(ModelConfig& config, int64_t layer) {
  if (const auto type = config.text_at("indexer_types", layer)) {
    return *type == "full";
  }
  constexpr auto* kPattern = "index_topk_pattern";
  if (config.is_text(kPattern)) {
    const auto pattern = config.text(kPattern).value_or("");
    const auto place = static_cast<size_t>(layer);
    const auto letter = place < pattern.size() ? pattern[place] : ' ';
    TORCH_ATTENTION_CHECK(
        letter == 'F' || letter == 'S',
        "expected F or S for layer {} in \"{}\" of \"{}\", but got \"{}\"",
        layer,
        kPattern,
        config.path(),
        pattern);
    return letter == 'F';
  }
  if (const auto type = config.text_at(kPattern, layer)) {
    return *type == "full";
  }
  const auto every =
      std::max<int64_t>(config.integer("index_topk_freq").value_or(1), 1);
  const auto offset = config.integer("index_skip_topk_offset").value_or(2);
  return std::max<int64_t>(layer - offset + 1, 0) % every == 0;
}

IndexerOptions describe_indexer(
    ModelConfig& config,
    int64_t layer,
    const ModelEntry& entry) {
  TORCH_ATTENTION_CHECK(
      !entry.has_shared_indexers || has_own_indexer(config, layer),
      "layer {} of \"{}\" attends to the keys that the indexer of an earlier "
      "layer chose, which is not computed",
      layer,
      config.path());
  const auto kept = config.text_at("layer_types", layer);
  TORCH_ATTENTION_CHECK(
      kept.value_or("indexed_attention") == "indexed_attention",
      "expected layers of \"{}\" with \"indexed_attention\", but got \"{}\"",
      config.path(),
      kept.value_or(""));
  return IndexerOptions(
             config.required_integer("index_n_heads"),
             config.required_integer("index_head_dim"),
             config.required_integer("index_topk"))
      .pairing(pairing_of(config, entry.indexer));
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
  TORCH_ATTENTION_CHECK(
      mscale == 0 || number("factor") != 0,
      "expected \"factor\" next to \"mscale_all_dim\" in \"{}\"",
      config.path());
  return mscale == 0 ? 1.0 : std::pow(yarn_scale(number("factor"), mscale), 2);
}

/// Returns the rotary embedding; none for models without one.
std::optional<RotaryOptions> latent_rotary(
    ModelConfig& config,
    const std::string& type,
    const LatentAttentionOptions& options) {
  const auto& latent = model_entries().at(type).latent;
  if (latent == "none") {
    ignore_rotary(config);
    return std::nullopt;
  }
  // Mistral 4 gives the share of a whole head, the others the rotated part.
  const bool is_share = type == "mistral4";
  const auto all = options.nope_dim() + options.rope_dim();
  RotaryRules rules;
  if (is_share) {
    rules.partial =
        static_cast<double>(options.rope_dim()) / static_cast<double>(all);
  }
  const auto rotated =
      config.integer("head_dim").value_or(is_share ? all : options.rope_dim());
  // Sarvam's class ignores the field.
  const auto head_dim = type == "sarvam_mla" ? options.rope_dim() : rotated;
  auto rotary = rotary_of(config, "full_attention", head_dim, rules);
  const auto dim = rotary.dim().value_or(head_dim);
  TORCH_ATTENTION_CHECK(
      dim == options.rope_dim(),
      "expected {} = qk_rope_head_dim = {} in \"{}\", but got {}",
      is_share ? "head_dim * partial_rotary_factor" : "head_dim",
      options.rope_dim(),
      config.path(),
      dim);
  return rotary.pairing(pairing_of(config, latent));
}

/// Both latent vectors are scaled as if they were as long as a token.
void set_longcat_scales(ModelConfig& config, LatentAttentionOptions& options) {
  const auto scale_of = [&](int64_t rank) {
    return std::sqrt(
        static_cast<double>(options.d_in()) / static_cast<double>(rank));
  };
  TORCH_ATTENTION_CHECK(
      options.query_rank().has_value(),
      "expected q_lora_rank in \"{}\", but got null",
      config.path());
  const auto head_dim = options.nope_dim() + options.rope_dim();
  TORCH_ATTENTION_CHECK(
      config.integer("qk_head_dim").value_or(head_dim) == head_dim,
      "expected qk_head_dim = qk_nope_head_dim + qk_rope_head_dim = {} in "
      "\"{}\", but got another one",
      head_dim,
      config.path());
  for (const auto* flag : {"mla_scale_q_lora", "mla_scale_kv_lora"}) {
    TORCH_ATTENTION_CHECK(
        config.flag(flag).value_or(true),
        "expected {} = true in \"{}\", since the class scales always",
        flag,
        config.path());
  }
  config.ignore("attention_method");
  options.query_scale(scale_of(*options.query_rank()))
      .latent_scale(scale_of(options.kv_rank()));
}

constexpr auto* kLinearConfig = "linear_attn_config";

/// Returns whether the list of Kimi Linear's older configurations contains the
/// layer, whose numbers there begin with 1.
bool lists_layer(const Json& lists, const char* name, int64_t layer) {
  const auto& numbers = lists.get(name).elements();
  return std::any_of(numbers.begin(), numbers.end(), [&](const Json& number) {
    return number.as_integer() == layer + 1;
  });
}

/// Returns whether the layer of Kimi Linear has no linear attention.
bool is_latent_in_kimi(ModelConfig& config, int64_t layer) {
  const auto type = config.text_at("layer_types", layer);
  const auto lists = config.object(kLinearConfig);
  if (type) {
    return *type == "full_attention";
  }
  if (lists.contains("full_attn_layers") && lists.contains("kda_layers")) {
    return lists_layer(lists, "full_attn_layers", layer) &&
        !lists_layer(lists, "kda_layers", layer);
  }
  return layer != 0 && layer % 4 == 0;
}

/// Returns the number of attentions. Each layer of LongCat Flash has two.
int64_t count_attentions(ModelConfig& config, const std::string& type) {
  constexpr auto* kLayers = "num_hidden_layers";
  if (type != "longcat_flash") {
    return config.required_integer(kLayers);
  }
  const auto count = 2 * config.required_integer("num_layers");
  TORCH_ATTENTION_CHECK(
      config.integer(kLayers).value_or(count) == count,
      "expected num_hidden_layers = 2 num_layers = {} in \"{}\", but got "
      "another number",
      count,
      config.path());
  return count;
}

LatentAttentionOptions latent_sizes(ModelConfig& config) {
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
  return options;
}

std::string latent_path(const std::string& type, int64_t layer) {
  return type == "longcat_flash"
      ? format_text("layers.{}.self_attn.{}", layer / 2, layer % 2)
      : format_text("layers.{}.self_attn", std::to_string(layer));
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
  config.take_layer(layer, type);
  config.check_layer(layer, count_attentions(config, type));
  TORCH_ATTENTION_CHECK(
      has_latent_attention(config, layer),
      "layer {} of \"{}\" has linear attention, which is not computed",
      layer,
      config.path());
  auto options = latent_sizes(config);
  const auto yarn = scale_of_yarn(config);
  if (type == "mistral4") {
    options.temperature(temperature_of(config));
  } else if (type == "longcat_flash") {
    set_longcat_scales(config, options);
  }
  options.rotary(latent_rotary(config, type, options));
  const auto& entry = model_entries().at(type);
  if (!entry.indexer.empty()) {
    options.indexer(describe_indexer(config, layer, entry));
    // Fixed by the class, which does not read them.
    config.ignore({"indexer_rope_interleave", "rope_interleave"});
  }
  if (yarn != 1 && options.rotary()) {
    const auto all = options.nope_dim() + options.rope_dim();
    options.scale(yarn / std::sqrt(static_cast<double>(all)));
  }
  config.ignore(
      {"head_dim",
       "linear_conv_kernel_dim",
       "linear_head_dim",
       "linear_num_heads",
       "num_key_value_heads",
       "q_head_dim",
       "qk_head_dim",
       "routed_scaling_factor",
       "scale_depth",
       "scale_emb"});
  config.check_no_more(type);
  return {type, options, latent_path(type, layer)};
}

int64_t count_latent_layers(ModelConfig& config) {
  if (config.has(kText)) {
    auto text = config.nested(kText);
    return count_latent_layers(text);
  }
  return count_attentions(config, config.text("model_type").value_or(""));
}

bool has_latent_attention(ModelConfig& config, int64_t layer) {
  return config.text("model_type") != "kimi_linear" ||
      is_latent_in_kimi(config, layer);
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
