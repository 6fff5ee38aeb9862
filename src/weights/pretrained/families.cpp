#include <weights/pretrained/families.h>

#include <format_text.h>
#include <weights/nearest.h>
#include <weights/pretrained/describe.h>
#include <weights/pretrained/latent.h>
#include <weights/pretrained/multimodal.h>
#include <weights/pretrained/unsupported.h>
#include <weights/text.h>

#include <c10/util/Exception.h>

#include <algorithm>
#include <map>
#include <optional>
#include <utility>

namespace torch_attention::weights::pretrained {

namespace {

constexpr auto* kSize = "hidden_size";
constexpr auto* kHeads = "num_attention_heads";
constexpr auto* kLayers = "num_hidden_layers";
constexpr auto* kLength = "max_position_embeddings";

/// The most tokens of a model that has no limit.
constexpr int64_t kUnlimited = int64_t{1} << 20;

/// Names of the fields of sizes; those that configurations have by other names
/// are known by these, too.
struct SizeNames {
  const char* size = kSize;
  const char* heads = kHeads;
  const char* layers = kLayers;
  const char* length = kLength;
};

using Describe = void (*)(Layer&);

struct Family {
  /// Of the attention; `{}` stands for the layer. The encoder's, if there is a
  /// decoder.
  const char* path;
  Describe describe;
  SizeNames names = {};
  /// Of the decoder's attention to itself and to the encoder's output.
  const char* decoder_path = nullptr;
  const char* cross_path = nullptr;
  SizeNames decoder_names = {};

  bool has_parts() const {
    return decoder_path != nullptr;
  }
};

Family bart_like(
    Describe describe,
    const char* source,
    const char* target,
    const char* cross_path = "decoder.layers.{}.encoder_attn") {
  return {
      "encoder.layers.{}.self_attn",
      describe,
      {"d_model", "encoder_attention_heads", "encoder_layers", source},
      "decoder.layers.{}.self_attn",
      cross_path,
      {"d_model", "decoder_attention_heads", "decoder_layers", target}};
}

Family t5_like() {
  return {
      "encoder.block.{}.layer.0.SelfAttention",
      describe_t5,
      {"d_model", "num_heads", "num_layers", kLength},
      "decoder.block.{}.layer.0.SelfAttention",
      "decoder.block.{}.layer.1.EncDecAttention",
      {"d_model", "num_heads", "num_decoder_layers", kLength}};
}

Family qwen_vision(const char* size) {
  return {
      "blocks.{}.attn",
      describe_qwen_vision,
      {size, "num_heads", "depth", kLength}};
}

const std::map<std::string, Family>& families() {
  constexpr auto* kLlama = "layers.{}.self_attn";
  constexpr auto* kBert = "encoder.layer.{}.attention";
  constexpr auto* kGpt = "h.{}.attn";
  static const std::map<std::string, Family> table{
      {"afmoe", {kLlama, describe_afmoe}},
      {"albert", {"", describe_albert}},
      {"apertus", {kLlama, describe_apertus}},
      {"arcee", {kLlama, describe_llama}},
      {"aria_text", {kLlama, describe_llama}},
      {"audio-spectrogram-transformer", {kBert, describe_vit}},
      {"bamba", {kLlama, describe_bamba}},
      {"bart", bart_like(describe_bart, kLength, kLength)},
      {"beit", {kBert, describe_beit}},
      {"bert", {kBert, describe_bert}},
      {"bert-generation", {kBert, describe_bert}},
      {"biogpt", {kLlama, describe_biogpt}},
      {"blenderbot", bart_like(describe_bart, kLength, kLength)},
      {"blenderbot-small", bart_like(describe_bart, kLength, kLength)},
      {"bloom",
       {"h.{}.self_attention",
        describe_bloom,
        {kSize, kHeads, kLayers, "seq_length"}}},
      {"camembert", {kBert, describe_bert}},
      {"chinese_clip_text_model", {kBert, describe_bert}},
      {"chinese_clip_vision_model",
       {"encoder.layers.{}.self_attn", describe_clip_vision}},
      {"clip_text_model", {"encoder.layers.{}.self_attn", describe_clip_text}},
      {"clip_vision_model",
       {"encoder.layers.{}.self_attn", describe_clip_vision}},
      {"codegen", {kGpt, describe_codegen}},
      {"cohere", {kLlama, describe_cohere}},
      {"cohere2", {kLlama, describe_cohere2}},
      {"cohere2_moe", {kLlama, describe_cohere2_moe}},
      {"ctrl", {"h.{}.multi_head_attention", describe_ctrl}},
      {"cwm", {kLlama, describe_cwm}},
      {"data2vec-audio", {"encoder.layers.{}.attention", describe_wav2vec2}},
      {"data2vec-text", {kBert, describe_bert}},
      {"data2vec-vision", {kBert, describe_beit}},
      {"dbrx", {"blocks.{}.norm_attn_norm.attn", describe_dbrx}},
      {"deit", {kBert, describe_vit}},
      {"dinov2", {kBert, describe_vit}},
      {"dinov2_with_registers", {kBert, describe_vit}},
      {"dinov3_vit", {"layer.{}.attention", describe_dinov3}},
      {"distilbert", {"transformer.layer.{}.attention", describe_distilbert}},
      {"dots1", {kLlama, describe_dots1}},
      {"electra", {kBert, describe_bert}},
      {"ernie", {kBert, describe_bert}},
      {"ernie4_5", {kLlama, describe_ernie4_5}},
      {"ernie4_5_moe", {kLlama, describe_ernie4_5}},
      {"esm", {kBert, describe_esm}},
      {"eurobert", {kLlama, describe_eurobert}},
      {"exaone4", {kLlama, describe_exaone4}},
      {"exaone_moe", {kLlama, describe_exaone4}},
      {"falcon", {"h.{}.self_attention", describe_falcon}},
      {"falcon_h1", {kLlama, describe_falcon_h1}},
      {"flaubert", {"attentions.{}", describe_xlm}},
      {"flex_olmo", {kLlama, describe_olmo2}},
      {"gemma", {kLlama, describe_gemma}},
      {"gemma2", {kLlama, describe_gemma2}},
      {"gemma3_text", {kLlama, describe_gemma3}},
      {"gemma3n_text", {kLlama, describe_gemma3n}},
      {"gemma4_text", {kLlama, describe_gemma4}},
      {"glm", {kLlama, describe_glm}},
      {"glm4", {kLlama, describe_glm}},
      {"glm4_moe", {kLlama, describe_glm4_moe}},
      {"gpt-sw3", {kGpt, describe_gpt2}},
      {"gpt2", {kGpt, describe_gpt2}},
      {"gpt_bigcode", {kGpt, describe_gpt_bigcode}},
      {"gpt_neo", {"h.{}.attn.attention", describe_gpt_neo}},
      {"gpt_oss", {kLlama, describe_gpt_oss}},
      {"llama4_text", {kLlama, describe_llama4}},
      {"ministral3", {kLlama, describe_ministral3}},
      {"modernbert", {"layers.{}.attn", describe_modernbert}},
      {"qwen3_5_moe_text", {kLlama, describe_qwen3_next}},
      {"qwen3_5_text", {kLlama, describe_qwen3_next}},
      {"qwen3_next", {kLlama, describe_qwen3_next}},
      {"gpt_neox", {"layers.{}.attention", describe_gpt_neox}},
      {"gptj", {kGpt, describe_gptj}},
      {"granite", {kLlama, describe_granite}},
      {"granite_swa", {kLlama, describe_granite_swa}},
      {"granitemoe", {kLlama, describe_granite}},
      {"granitemoe_swa", {kLlama, describe_granite_swa}},
      {"granitemoehybrid", {kLlama, describe_granite_hybrid}},
      {"granitemoeshared", {kLlama, describe_granite}},
      {"helium", {kLlama, describe_helium}},
      {"higgs_audio_v2", {kLlama, describe_llama}},
      {"hubert", {"encoder.layers.{}.attention", describe_wav2vec2}},
      {"hunyuan_v1_dense", {kLlama, describe_hunyuan}},
      {"hunyuan_v1_moe", {kLlama, describe_hunyuan}},
      {"hy_v3", {kLlama, describe_qwen3_vl}},
      {"hyperclovax", {kLlama, describe_granite}},
      {"idefics3_vision",
       {"encoder.layers.{}.self_attn", describe_clip_vision}},
      {"ijepa", {kBert, describe_vit}},
      {"imagegpt", {kGpt, describe_gpt2}},
      {"internlm3", {kLlama, describe_internlm3}},
      {"iquestcoder", {kLlama, describe_llama}},
      {"jais2", {kLlama, describe_llama}},
      {"jamba", {kLlama, describe_jamba}},
      {"kolibri1", {kLlama, describe_kolibri1}},
      {"layoutlm", {kBert, describe_bert}},
      {"lfm2", {kLlama, describe_lfm2}},
      {"lfm2_moe", {kLlama, describe_lfm2}},
      {"llama", {kLlama, describe_llama}},
      {"m2m_100", bart_like(describe_bart, kLength, kLength)},
      {"marian", bart_like(describe_bart, kLength, kLength)},
      {"markuplm", {kBert, describe_bert}},
      {"mbart", bart_like(describe_bart, kLength, kLength)},
      {"megatron-bert", {kBert, describe_bert}},
      {"mellum", {kLlama, describe_mellum}},
      {"minimax_m2", {kLlama, describe_minimax_m2}},
      {"ministral", {kLlama, describe_ministral}},
      {"mistral", {kLlama, describe_mistral}},
      {"mixtral", {kLlama, describe_mistral}},
      {"modernbert-decoder", {"layers.{}.attn", describe_modernbert_decoder}},
      {"molmo2_text", {kLlama, describe_molmo2}},
      {"mpnet", {kBert, describe_mpnet}},
      {"mpt",
       {"blocks.{}.attn",
        describe_mpt,
        {kSize, kHeads, kLayers, "max_seq_len"}}},
      {"mt5", t5_like()},
      {"mvp", bart_like(describe_bart, kLength, kLength)},
      {"nemotron", {kLlama, describe_nemotron}},
      {"nllb-moe",
       bart_like(
           describe_bart,
           kLength,
           kLength,
           "decoder.layers.{}.cross_attention")},
      {"nomic_bert", {"encoder.layers.{}.attn", describe_nomic_bert}},
      {"olmo", {kLlama, describe_olmo}},
      {"olmo2", {kLlama, describe_olmo2}},
      {"olmo3", {kLlama, describe_olmo3}},
      {"olmo_hybrid", {kLlama, describe_olmo_hybrid}},
      {"olmoe", {kLlama, describe_olmoe}},
      {"openai-gpt", {kGpt, describe_openai_gpt}},
      {"opt", {"decoder.layers.{}.self_attn", describe_opt}},
      {"pegasus", bart_like(describe_bart, kLength, kLength)},
      {"persimmon", {kLlama, describe_persimmon}},
      {"phi", {kLlama, describe_phi}},
      {"phi3", {kLlama, describe_phi3}},
      {"phimoe", {kLlama, describe_phimoe}},
      {"pixio", {kBert, describe_vit}},
      {"pixtral", {"transformer.layers.{}.attention", describe_pixtral}},
      {"plbart", bart_like(describe_bart, kLength, kLength)},
      {"qwen2", {kLlama, describe_qwen2}},
      {"qwen2_5_vl_vision", qwen_vision(kSize)},
      {"qwen2_5_vl_text", {kLlama, describe_qwen2_vl}},
      {"qwen2_moe", {kLlama, describe_qwen2_moe}},
      {"qwen2_vl_text", {kLlama, describe_qwen2_vl}},
      {"qwen2_vl_vision", qwen_vision("embed_dim")},
      {"qwen3", {kLlama, describe_qwen3}},
      {"qwen3_moe", {kLlama, describe_qwen3_moe}},
      {"qwen3_5_moe_vision", qwen_vision(kSize)},
      {"qwen3_5_vision", qwen_vision(kSize)},
      {"qwen3_vl_moe_text", {kLlama, describe_qwen3_vl}},
      {"qwen3_vl_moe_vision", qwen_vision(kSize)},
      {"qwen3_vl_text", {kLlama, describe_qwen3_vl}},
      {"qwen3_vl_vision", qwen_vision(kSize)},
      {"rembert", {kBert, describe_bert}},
      {"roberta", {kBert, describe_bert}},
      {"roc_bert", {kBert, describe_bert}},
      {"roberta-prelayernorm", {kBert, describe_bert}},
      {"roformer", {kBert, describe_roformer}},
      {"seed_oss", {kLlama, describe_seed_oss}},
      {"sew", {"encoder.layers.{}.attention", describe_wav2vec2}},
      {"siglip_text_model",
       {"encoder.layers.{}.self_attn", describe_clip_vision}},
      {"siglip_vision_model",
       {"encoder.layers.{}.self_attn", describe_clip_vision}},
      {"smolvlm_vision", {"encoder.layers.{}.self_attn", describe_clip_vision}},
      {"smollm3", {kLlama, describe_smollm3}},
      {"solar_open", {kLlama, describe_solar_open}},
      {"speech_to_text",
       bart_like(
           describe_bart, "max_source_positions", "max_target_positions")},
      {"splinter", {kBert, describe_bert}},
      {"stablelm", {kLlama, describe_stablelm}},
      {"starcoder2", {kLlama, describe_starcoder2}},
      {"switch_transformers", t5_like()},
      {"t5", t5_like()},
      {"tapas", {kBert, describe_tapas}},
      {"unispeech", {"encoder.layers.{}.attention", describe_wav2vec2}},
      {"unispeech-sat", {"encoder.layers.{}.attention", describe_wav2vec2}},
      {"vaultgemma", {kLlama, describe_gemma2}},
      {"videomae", {kBert, describe_videomae}},
      {"visual_bert", {kBert, describe_bert}},
      {"vit", {kBert, describe_vit}},
      {"vit_mae", {kBert, describe_vit}},
      {"vit_msn", {kBert, describe_vit}},
      {"vivit", {kBert, describe_vit}},
      {"wav2vec2", {"encoder.layers.{}.attention", describe_wav2vec2}},
      {"whisper",
       bart_like(
           describe_whisper, "max_source_positions", "max_target_positions")},
      {"xglm", {kLlama, describe_xglm}},
      {"xlm", {"attentions.{}", describe_xlm}},
      {"xlm-roberta", {kBert, describe_bert}},
      {"xlm-roberta-xl", {kBert, describe_bert}},
      {"xmod", {kBert, describe_bert}},
      {"yolos", {kBert, describe_vit}},
  };
  return table;
}

[[noreturn]] void refuse_type(
    const std::string& path,
    const std::string& type) {
  TORCH_CHECK(
      !is_latent_type(type),
      format_text(
          "the attention of model_type \"{}\" of \"{}\" is latent: "
          "latent_attention_from_pretrained loads it",
          type,
          path));
  const auto unsupported = unsupported_types().find(type);
  if (unsupported != unsupported_types().end()) {
    C10_THROW_ERROR(
        Error,
        format_text(
            "the attention of model_type \"{}\" of \"{}\" is not computed: {}",
            type,
            path,
            unsupported->second));
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

std::string type_of(ModelConfig& config) {
  const auto type = config.text("model_type");
  TORCH_CHECK(
      type.has_value(),
      format_text(
          "expected \"model_type\" in \"{}\", which has none", config.path()));
  return *type;
}

/// A family, and the part of it that is meant.
struct Found {
  std::string type;
  const Family& family;
  PretrainedPart part;

  bool is_decoder() const {
    return part == PretrainedPart::kDecoder;
  }

  const SizeNames& names() const {
    return is_decoder() ? family.decoder_names : family.names;
  }
};

Found find_family(
    ModelConfig& config,
    const std::string& type,
    PretrainedPart part,
    bool is_cross) {
  const auto found = families().find(type);
  if (found == families().end()) {
    refuse_type(config.path(), type);
  }
  const auto& family = found->second;
  config.set_defaults_of(type);
  TORCH_CHECK(
      family.has_parts() || !is_cross,
      format_text(
          "model_type \"{}\" of \"{}\" has no cross-attention",
          type,
          config.path()));
  if (is_cross) {
    part = PretrainedPart::kDecoder;
  }
  const bool is_stack =
      part == PretrainedPart::kEncoder || part == PretrainedPart::kDecoder;
  TORCH_CHECK(
      family.has_parts() ? is_stack : part == PretrainedPart::kAuto,
      format_text(
          "model_type \"{}\" of \"{}\" has {}, but part is {}",
          type,
          config.path(),
          family.has_parts() ? "an encoder and a decoder: give "
                               "PretrainedPart::kEncoder or kDecoder"
                             : "no parts",
          name_of(part)));
  return {type, family, part};
}

int64_t layers_of(ModelConfig& config, const Found& found) {
  const auto* field = found.names().layers;
  // T5's decoder has as many layers as its encoder unless it says otherwise.
  const auto layers = config.integer(field);
  return layers ? *layers : config.required_integer(found.family.names.layers);
}

/// Throws c10::Error unless the type of the layer is what is computed, where
/// the family does not read the types of layers.
void check_type(const Layer& layer) {
  auto& config = layer.config;
  if (config.was_asked("layer_types")) {
    return;
  }
  const auto of_layer = config.text_at("layer_types", layer.index);
  const auto* computed =
      layer.options.window() ? "sliding_attention" : "full_attention";
  TORCH_CHECK(
      !of_layer || of_layer == computed,
      format_text(
          "expected {} as \"layer_types\" of \"{}\", whose model has it in "
          "all layers, but got \"{}\" for layer {}",
          computed,
          config.path(),
          of_layer.value_or(""),
          layer.index));
}

std::string with_layer(std::string path, int64_t layer) {
  const auto place = path.find("{}");
  return place == std::string::npos
      ? path
      : path.replace(place, 2, std::to_string(layer));
}

DescribedAttention describe(
    ModelConfig& config,
    const std::string& type,
    const Wanted& wanted) {
  const auto found = find_family(config, type, wanted.part, wanted.is_cross);
  const auto& family = found.family;
  config.check_layer(wanted.layer, layers_of(config, found));
  config.take_layer(wanted.layer);
  const auto& names = found.names();
  const auto size = config.required_integer(names.size);
  const auto heads = config.required_integer(names.heads);
  TORCH_CHECK(
      size > 0 && heads > 0,
      format_text(
          "expected {} > 0 and {} > 0 in \"{}\", but got {} and {}",
          config.name_of(names.size),
          config.name_of(names.heads),
          config.path(),
          size,
          heads));
  Layer layer{
      config,
      wanted.layer,
      found.part,
      wanted.is_cross,
      MultiHeadAttentionOptions(
          size, size, config.integer(names.length).value_or(kUnlimited), heads)
          .register_mask(false)};
  layer.path = wanted.is_cross ? family.cross_path
      : found.is_decoder()     ? family.decoder_path
                               : family.path;
  family.describe(layer);
  check_type(layer);
  TORCH_CHECK(
      config.flag("is_causal").value_or(true) || !layer.options.causal(),
      format_text(
          "expected is_causal = true in \"{}\", whose model_type \"{}\" is "
          "causal, but got false",
          config.path(),
          type));
  config.check_no_more(type);
  std::vector<Place> places{
      {with_layer(layer.path, wanted.layer), layer.layout}};
  for (const auto& [path, layout] : layer.others) {
    places.push_back({with_layer(path, wanted.layer), layout});
  }
  return {
      type,
      layer.options,
      std::move(places),
      PretrainedPart::kAuto,
      layer.needs_bias,
      layer.needs_rotary};
}

} // namespace

std::vector<std::string> known_model_types() {
  auto types = multimodal_types();
  for (const auto& [type, family] : families()) {
    types.push_back(type);
  }
  std::sort(types.begin(), types.end());
  return types;
}

std::vector<PretrainedPart> parts_of(ModelConfig& config) {
  const auto type = type_of(config);
  if (const auto* model = find_multimodal(type)) {
    return model->vision.empty()
        ? std::vector{PretrainedPart::kText}
        : std::vector{PretrainedPart::kText, PretrainedPart::kVision};
  }
  const auto found = families().find(type);
  return found != families().end() && found->second.has_parts()
      ? std::vector{PretrainedPart::kEncoder, PretrainedPart::kDecoder}
      : std::vector{PretrainedPart::kAuto};
}

int64_t count_layers(ModelConfig& config, PretrainedPart part) {
  const auto type = type_of(config);
  if (const auto* model = find_multimodal(type)) {
    auto inner = part_of(config, *model, part);
    return layers_of(
        inner.config,
        find_family(inner.config, inner.type, PretrainedPart::kAuto, false));
  }
  return layers_of(config, find_family(config, type, part, false));
}

DescribedAttention describe_attention(
    ModelConfig& config,
    const Wanted& wanted) {
  const auto type = type_of(config);
  if (const auto* model = find_multimodal(type)) {
    auto inner = part_of(config, *model, wanted.part);
    auto described = describe(
        inner.config,
        inner.type,
        {wanted.layer, PretrainedPart::kAuto, wanted.is_cross});
    described.part = inner.part;
    return described;
  }
  return describe(config, type, wanted);
}

} // namespace torch_attention::weights::pretrained
