#include <weights/pretrained/families.h>

#include <format_text.h>
#include <weights/nearest.h>
#include <weights/pretrained/rotary.h>
#include <weights/text.h>

#include <c10/util/Exception.h>

#include <cmath>
#include <functional>
#include <map>
#include <utility>

namespace torch_attention::weights::pretrained {

namespace {

/// A layer that is being described.
struct Layer {
  ModelConfig& config;
  int64_t index;
  MultiHeadAttentionOptions options;
  /// "full_attention" or "sliding_attention".
  std::string type = "full_attention";
  WeightLayout layout = WeightLayout::llama();
};

struct Family {
  /// `{}` stands for the layer.
  const char* path;
  /// Describes the layer beyond its sizes.
  std::function<void(Layer&)> describe;
  /// Names of the fields of sizes.
  const char* size = "hidden_size";
  const char* heads = "num_attention_heads";
  const char* layers = "num_hidden_layers";
  const char* length = "max_position_embeddings";
};

int64_t head_dim(const Layer& layer) {
  const auto& options = layer.options;
  return options.head_dim().value_or(options.d_out() / options.num_heads());
}

double root_of_head_dim(const Layer& layer) {
  return std::sqrt(static_cast<double>(head_dim(layer)));
}

/// Grouped heads, a size of heads, dropout.
void set_heads(Layer& layer) {
  auto& config = layer.config;
  layer.options.num_kv_heads(config.integer("num_key_value_heads"));
  layer.options.head_dim(config.integer("head_dim"));
  layer.options.dropout(config.number("attention_dropout").value_or(0));
}

/// One flag for all four biases.
void set_biases(Layer& layer) {
  const bool bias = layer.config.flag("attention_bias").value_or(false);
  layer.options.qkv_bias(bias).out_bias(bias);
}

/// The type of a layer from `layer_types`, or by `otherwise` in configurations
/// that are older than that field.
void set_type(Layer& layer, bool otherwise) {
  const auto type = layer.config.text_at("layer_types", layer.index);
  layer.type =
      type.value_or(otherwise ? "sliding_attention" : "full_attention");
  TORCH_CHECK(
      layer.type == "full_attention" || layer.type == "sliding_attention",
      format_text(
          "expected full_attention or sliding_attention as \"layer_types\" of "
          "\"{}\", but got \"{}\" for layer {}",
          layer.config.path(),
          layer.type,
          layer.index));
  const auto window = layer.config.integer("sliding_window");
  if (layer.type == "sliding_attention") {
    layer.options.window(window);
  }
}

void set_rotary(
    Layer& layer,
    const RotaryRules& rules = {},
    RotaryPairing pairing = RotaryPairing::kHalves) {
  layer.options.rotary(
      rotary_of(layer.config, layer.type, head_dim(layer), rules)
          .pairing(pairing));
}

RotaryRules with_theta(double theta) {
  RotaryRules rules;
  rules.theta = theta;
  return rules;
}

RotaryRules with_partial(double share) {
  RotaryRules rules;
  rules.partial = share;
  return rules;
}

void set_norm(
    Layer& layer,
    HeadNormOptions norm,
    const char* eps,
    double otherwise) {
  layer.options.qk_norm(norm.eps(layer.config.number(eps).value_or(otherwise)));
}

/// Llama, and all that differ from it in weights that are not attention's.
void describe_llama(Layer& layer) {
  set_heads(layer);
  set_biases(layer);
  set_rotary(layer);
}

void describe_mistral_with(Layer& layer, const RotaryRules& rules) {
  set_heads(layer);
  layer.options.out_bias(false);
  set_type(layer, layer.config.has("sliding_window"));
  set_rotary(layer, rules);
}

void describe_mistral(Layer& layer) {
  describe_mistral_with(layer, {});
}

void describe_mixtral(Layer& layer) {
  describe_mistral_with(layer, with_theta(1e6));
}

/// How many layers see all tokens before those with a window begin.
int64_t max_window_layers(Layer& layer) {
  return layer.config.integer("max_window_layers").value_or(28);
}

bool uses_window(Layer& layer) {
  return layer.config.flag("use_sliding_window").value_or(false);
}

void set_qwen_window(Layer& layer) {
  const auto full = max_window_layers(layer);
  set_type(layer, uses_window(layer) && layer.index >= full);
}

void set_qwen2_heads(Layer& layer) {
  set_heads(layer);
  layer.options.qkv_bias(layer.config.flag("qkv_bias").value_or(true));
  layer.options.out_bias(false);
}

void describe_qwen2(Layer& layer) {
  set_qwen2_heads(layer);
  set_qwen_window(layer);
  set_rotary(layer);
}

void describe_qwen2_moe(Layer& layer) {
  set_qwen2_heads(layer);
  const auto most = max_window_layers(layer);
  set_type(
      layer, uses_window(layer) && layer.index % 2 == 0 && layer.index < most);
  set_rotary(layer);
}

void describe_qwen3(Layer& layer) {
  set_heads(layer);
  if (!layer.options.head_dim()) {
    layer.options.head_dim(128);
  }
  set_biases(layer);
  set_qwen_window(layer);
  set_norm(layer, HeadNormOptions(), "rms_norm_eps", 1e-6);
  set_rotary(layer);
}

void describe_qwen3_moe(Layer& layer) {
  set_heads(layer);
  set_biases(layer);
  layer.config.ignore("max_window_layers");
  set_type(layer, uses_window(layer));
  set_norm(layer, HeadNormOptions(), "rms_norm_eps", 1e-6);
  set_rotary(layer);
}

void describe_gemma_heads(Layer& layer) {
  set_heads(layer);
  if (!layer.options.head_dim()) {
    layer.options.head_dim(256);
  }
  set_biases(layer);
  TORCH_CHECK(
      !layer.config.flag("use_bidirectional_attention").value_or(false),
      format_text(
          "expected use_bidirectional_attention = false in \"{}\": windows to "
          "both sides are not computed",
          layer.config.path()));
}

void describe_gemma(Layer& layer) {
  describe_gemma_heads(layer);
  set_rotary(layer);
}

void set_query_scalar(Layer& layer) {
  const auto scalar =
      layer.config.number("query_pre_attn_scalar").value_or(256);
  layer.options.scale(1 / std::sqrt(scalar));
  layer.options.softcap(layer.config.number("attn_logit_softcapping"));
}

void describe_gemma2(Layer& layer) {
  set_type(layer, layer.index % 2 == 0);
  describe_gemma(layer);
  set_query_scalar(layer);
  // Null means none.
  if (!layer.config.contains("attn_logit_softcapping")) {
    layer.options.softcap(50.0);
  }
  // The same under another name, in released files.
  layer.config.ignore("sliding_window_size");
}

void describe_gemma3(Layer& layer) {
  const auto pattern =
      layer.config.integer("sliding_window_pattern")
          .value_or(
              layer.config.integer("_sliding_window_pattern").value_or(6));
  set_type(layer, pattern > 0 && (layer.index + 1) % pattern != 0);
  describe_gemma_heads(layer);
  set_norm(layer, HeadNormOptions().unit_offset(true), "rms_norm_eps", 1e-6);
  set_query_scalar(layer);
  auto rules = with_theta(1e6);
  rules.local_theta = 10000;
  set_rotary(layer, rules);
}

void describe_olmo(Layer& layer, const RotaryRules& rules) {
  set_heads(layer);
  set_biases(layer);
  set_norm(
      layer,
      HeadNormOptions().scope(HeadNormScope::kAllHeads),
      "rms_norm_eps",
      1e-5);
  set_rotary(layer, rules);
}

void describe_olmo2(Layer& layer) {
  describe_olmo(layer, {});
}

void describe_olmo3(Layer& layer) {
  set_type(layer, (layer.index + 1) % 4 != 0);
  auto rules = with_theta(5e5);
  rules.scales_sliding = false;
  describe_olmo(layer, rules);
}

void describe_granite(Layer& layer) {
  describe_llama(layer);
  layer.options.scale(
      layer.config.number("attention_multiplier").value_or(1.0));
}

void describe_smollm3(Layer& layer) {
  set_heads(layer);
  set_biases(layer);
  const bool slides = layer.config.flag("use_sliding_window").value_or(false);
  const auto interval =
      layer.config.integer("no_rope_layer_interval").value_or(4);
  const bool rotates =
      layer.config.integer_at("no_rope_layers", layer.index)
          .value_or(interval > 0 && (layer.index + 1) % interval != 0) != 0;
  set_type(layer, slides && !rotates);
  layer.config.ignore("max_window_layers");
  if (rotates) {
    set_rotary(layer, with_theta(2e6));
  } else {
    ignore_rotary(layer.config);
  }
}

/// By a number, of which every such layer sees all tokens, or a text such as
/// "LLLG", in which L stands for layers with a window.
bool slides_by_pattern(Layer& layer) {
  constexpr const char* kPattern = "sliding_window_pattern";
  if (layer.config.is_text(kPattern)) {
    const auto text = layer.config.text(kPattern).value_or("");
    const auto place = static_cast<size_t>(layer.index);
    return !text.empty() && text[place % text.size()] == 'L';
  }
  const auto pattern = layer.config.integer(kPattern).value_or(4);
  return pattern > 0 && (layer.index + 1) % pattern != 0;
}

void describe_exaone4(Layer& layer) {
  layer.config.ignore("sliding_window_pattern");
  set_heads(layer);
  layer.options.out_bias(false);
  set_type(layer, !layer.config.has("layer_types") && slides_by_pattern(layer));
  set_norm(layer, HeadNormOptions(), "rms_norm_eps", 1e-5);
  // Layers that see all tokens have no positions, beside those with a window.
  if (!layer.config.has("sliding_window") ||
      layer.type == "sliding_attention") {
    set_rotary(layer);
  } else {
    ignore_rotary(layer.config);
  }
}

void describe_starcoder2(Layer& layer) {
  set_heads(layer);
  const bool bias = layer.config.flag("use_bias").value_or(true);
  layer.options.qkv_bias(bias).out_bias(bias);
  layer.options.window(layer.config.integer("sliding_window"));
  set_rotary(layer);
}

void describe_stablelm(Layer& layer) {
  set_heads(layer);
  layer.options.qkv_bias(layer.config.flag("use_qkv_bias").value_or(false));
  layer.options.out_bias(false);
  TORCH_CHECK(
      !layer.config.flag("qk_layernorm").value_or(false),
      format_text(
          "expected qk_layernorm = false in \"{}\": the norms of this model "
          "are stored head by head, which is not read",
          layer.config.path()));
  set_rotary(layer, with_partial(0.25));
}

void describe_cohere(Layer& layer) {
  set_heads(layer);
  set_biases(layer);
  if (layer.config.flag("use_qk_norm").value_or(false)) {
    set_norm(
        layer,
        HeadNormOptions(HeadNormKind::kLayer)
            .scope(HeadNormScope::kHeadWeights),
        "layer_norm_eps",
        1e-5);
  }
  set_rotary(layer, with_theta(5e5), RotaryPairing::kInterleaved);
}

void describe_glm(Layer& layer) {
  set_heads(layer);
  if (!layer.options.head_dim()) {
    layer.options.head_dim(128);
  }
  layer.options.qkv_bias(layer.config.flag("attention_bias").value_or(false));
  layer.options.out_bias(false);
  set_rotary(layer, with_partial(0.5), RotaryPairing::kInterleaved);
}

void describe_phi(Layer& layer) {
  set_heads(layer);
  layer.options.qkv_bias(true);
  TORCH_CHECK(
      !layer.config.flag("qk_layernorm").value_or(false),
      format_text(
          "expected qk_layernorm = false in \"{}\": the norms of this model "
          "are not read",
          layer.config.path()));
  layer.layout = WeightLayout("phi");
  for (const auto* part : {"weight", "bias"}) {
    const auto key = [&](const char* name) {
      return std::string(name) + "." + part;
    };
    layer.layout.rename(key("q_proj"), key("W_query"))
        .rename(key("k_proj"), key("W_key"))
        .rename(key("v_proj"), key("W_value"))
        .rename(key("dense"), key("out_proj"));
  }
  set_rotary(layer, with_partial(0.5));
}

void describe_phi3(Layer& layer) {
  set_heads(layer);
  layer.options.out_bias(false);
  layer.options.window(layer.config.integer("sliding_window"));
  layer.layout = WeightLayout("phi3")
                     .split(
                         "qkv_proj.weight",
                         {"W_query.weight", "W_key.weight", "W_value.weight"})
                     .rename("o_proj.weight", "out_proj.weight");
  set_rotary(layer, with_partial(1));
}

void describe_gpt2(Layer& layer) {
  auto& config = layer.config;
  layer.options.qkv_bias(true).dropout(
      config.number("attn_pdrop").value_or(0.1));
  const bool scaled = config.flag("scale_attn_weights").value_or(true);
  auto scale = scaled ? 1 / root_of_head_dim(layer) : 1.0;
  if (config.flag("scale_attn_by_inverse_layer_idx").value_or(false)) {
    scale /= static_cast<double>(layer.index + 1);
  }
  layer.options.scale(scale);
  // The same function, in another dtype.
  config.ignore("reorder_and_upcast_attn");
  layer.layout = WeightLayout::gpt2();
}

/// With the buffers that released files of GPT-Neo and GPT-J hold.
WeightLayout layout_with_masks() {
  auto layout = WeightLayout::bart();
  layout.ignore("bias").ignore("masked_bias");
  return layout;
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
  layer.options.dropout(config.number("attn_pdrop").value_or(0))
      .out_bias(false)
      .rotary(RotaryOptions()
                  .dim(config.integer("rotary_dim").value_or(64))
                  .pairing(RotaryPairing::kInterleaved));
  layer.layout = layout_with_masks();
}

void describe_opt(Layer& layer) {
  auto& config = layer.config;
  const bool bias = config.flag("enable_bias").value_or(true);
  layer.options.qkv_bias(bias).out_bias(bias).dropout(
      config.number("attention_dropout").value_or(0));
  layer.layout = WeightLayout::bart();
}

/// Encoders of BERT's kind. Their dense layer after attention is `out_proj`;
/// the norm after it is not attention's.
void describe_bert(Layer& layer) {
  auto& config = layer.config;
  const auto positions =
      config.text("position_embedding_type").value_or("absolute");
  TORCH_CHECK(
      positions == "absolute",
      format_text(
          "expected absolute as \"position_embedding_type\" of \"{}\", but got "
          "\"{}\", which adds to the scores what is not read",
          config.path(),
          positions));
  layer.options.qkv_bias(true)
      .causal(config.flag("is_decoder").value_or(false))
      .dropout(config.number("attention_probs_dropout_prob").value_or(0.1));
  layer.layout = WeightLayout::bert();
}

const std::map<std::string, Family>& families() {
  static const auto* table = [] {
    constexpr auto* kLlamaPath = "layers.{}.self_attn";
    constexpr auto* kBertPath = "encoder.layer.{}.attention";
    auto* result = new std::map<std::string, Family>{
        {"bert", {kBertPath, describe_bert}},
        {"camembert", {kBertPath, describe_bert}},
        {"cohere", {kLlamaPath, describe_cohere}},
        {"electra", {kBertPath, describe_bert}},
        {"exaone4", {kLlamaPath, describe_exaone4}},
        {"gemma", {kLlamaPath, describe_gemma}},
        {"gemma2", {kLlamaPath, describe_gemma2}},
        {"gemma3_text", {kLlamaPath, describe_gemma3}},
        {"glm", {kLlamaPath, describe_glm}},
        {"gpt2",
         {"h.{}.attn",
          describe_gpt2,
          "n_embd",
          "n_head",
          "n_layer",
          "n_positions"}},
        {"gpt_neo",
         {"h.{}.attn.attention",
          describe_gpt_neo,
          "hidden_size",
          "num_heads",
          "num_layers"}},
        {"gptj",
         {"h.{}.attn",
          describe_gptj,
          "n_embd",
          "n_head",
          "n_layer",
          "n_positions"}},
        {"granite", {kLlamaPath, describe_granite}},
        {"llama", {kLlamaPath, describe_llama}},
        {"mistral", {kLlamaPath, describe_mistral}},
        {"mixtral", {kLlamaPath, describe_mixtral}},
        {"olmo2", {kLlamaPath, describe_olmo2}},
        {"olmo3", {kLlamaPath, describe_olmo3}},
        {"opt", {"decoder.layers.{}.self_attn", describe_opt}},
        {"phi", {kLlamaPath, describe_phi}},
        {"phi3", {kLlamaPath, describe_phi3}},
        {"qwen2", {kLlamaPath, describe_qwen2}},
        {"qwen2_moe", {kLlamaPath, describe_qwen2_moe}},
        {"qwen3", {kLlamaPath, describe_qwen3}},
        {"qwen3_moe", {kLlamaPath, describe_qwen3_moe}},
        {"roberta", {kBertPath, describe_bert}},
        {"smollm3", {kLlamaPath, describe_smollm3}},
        {"stablelm", {kLlamaPath, describe_stablelm}},
        {"starcoder2", {kLlamaPath, describe_starcoder2}},
        {"xlm-roberta", {kBertPath, describe_bert}},
    };
    return result;
  }();
  return *table;
}

const Family& family_of(const std::string& path, const std::string& type) {
  const auto found = families().find(type);
  if (found != families().end()) {
    return found->second;
  }
  const auto known = known_model_types();
  const auto nearest = NearestText(known).find(type);
  TORCH_CHECK(
      false,
      format_text(
          "model_type \"{}\" of \"{}\" is not known{}; known are {}. For "
          "another model give MultiHeadAttentionOptions yourself, and load its "
          "weights with load_weights",
          type,
          path,
          nearest ? format_text(", the nearest is \"{}\"", *nearest) : "",
          list_text(known, ", ")));
}

} // namespace

std::vector<std::string> known_model_types() {
  std::vector<std::string> types;
  for (const auto& [type, family] : families()) {
    types.push_back(type);
  }
  return types;
}

DescribedAttention describe_attention(ModelConfig& config, int64_t layer) {
  const auto type = config.text("model_type");
  TORCH_CHECK(
      type.has_value(),
      format_text(
          "expected \"model_type\" in \"{}\", which has none", config.path()));
  const auto& family = family_of(config.path(), *type);
  const auto layers = config.required_integer(family.layers);
  TORCH_CHECK(
      layer >= 0 && layer < layers,
      format_text(
          "expected a layer in [0, {}), of which \"{}\" speaks, but got {}",
          layers,
          config.path(),
          layer));
  const auto size = config.required_integer(family.size);
  const auto heads = config.required_integer(family.heads);
  TORCH_CHECK(
      size > 0 && heads > 0,
      format_text(
          "expected {} > 0 and {} > 0 in \"{}\", but got {} and {}",
          family.size,
          family.heads,
          config.path(),
          size,
          heads));
  Layer described{
      config,
      layer,
      MultiHeadAttentionOptions(
          size, size, config.required_integer(family.length), heads)
          .register_mask(false)};
  family.describe(described);
  if (!config.was_asked("layer_types")) {
    const auto of_layer = config.text_at("layer_types", layer);
    TORCH_CHECK(
        !of_layer || of_layer == "full_attention",
        format_text(
            "expected full_attention as \"layer_types\" of \"{}\", but got "
            "\"{}\" for layer {}",
            config.path(),
            of_layer.value_or(""),
            layer));
  }
  TORCH_CHECK(
      config.flag("is_causal").value_or(true) || !described.options.causal(),
      format_text(
          "expected is_causal = true in \"{}\", whose model_type \"{}\" is "
          "causal, but got false",
          config.path(),
          *type));
  config.check_no_more(*type);
  std::string path = family.path;
  path.replace(path.find("{}"), 2, std::to_string(layer));
  return {*type, described.options, path, described.layout};
}

} // namespace torch_attention::weights::pretrained
