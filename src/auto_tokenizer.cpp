#include <auto_tokenizer.h>

#include <check.h>
#include <config_file.h>

#include <algorithm>
#include <array>
#include <filesystem>
#include <string_view>

namespace torch_attention {

namespace {

/// The values of `model_type` with a class of tokenizers, between spaces.
struct ModelTypes {
  std::string_view tokenizer;
  std::string_view types;
};

// TOKENIZER_MAPPING_NAMES of transformers 5.24, with the names that are others
// of a class replaced by it.
constexpr std::array<ModelTypes, 9> kModelTypes{{
    {kGenericTokenizer,
     "EvollaModel arctic aria beam bigbird_pegasus camembertv2-base canary "
     "chatlm cohere_asr ernie4_5 ernie4_5_moe flex_olmo fuyu glm glm4 "
     "glm4_moe glm4_moe_lite glm4v glm4v_moe glm_image glmasr got_ocr2 "
     "gpt_bigcode gradium_phonon_tts granite granitemoe granitemoehybrid "
     "granitemoeshared h2ovl_chat hyperclovax hyperclovax_vlm internlm2 "
     "internlm3 iquestcoder jamba kimi_k25 kimi_linear kosmos-2 llava "
     "llava_next mimo_v2_flash minicpm3 minicpm_ocr minicpmv minicpmv4_6 "
     "minicpmv4_7 minimax_m2 ministral ministral3 mistral mistral3 "
     "mistral_large4 mixtral modernbert modernbert-decoder molmo molmo2 "
     "nemo_speechlm nemotron nvfp4 nystromformer olmo2 olmo3 olmo_hybrid "
     "omniasr opencua openvla paddleocr_vl pegasus_x persimmon phi3 phi3_v "
     "phimoe pix2struct pixtral pocket_tts smolvlm stablelm step3_vl umt5 "
     "vipllava voxtral voxtral_realtime xlm-roberta-xl"},
    {"BertTokenizer",
     "align bark bert blip bros chinese_clip convbert distilbert dpr electra "
     "ernie flava git grounding-dino layoutlm lxmert megatron-bert "
     "mm-grounding-dino mobilebert nezha nomic_bert qdqbert realm retribert "
     "squeezebert tvp vilt visual_bert"},
    {"GPT2Tokenizer",
     "blip-2 codegen dbrx emu3 gpt2 gpt_neo gptj hyperclovax_vision_v2 "
     "instructblip instructblipvideo jais2 opt phi starcoder2"},
    {"GemmaTokenizer",
     "diffusion_gemma gemma gemma2 gemma3 gemma3_text gemma3n gemma3n_text "
     "recurrent_gemma shieldgemma2 t5gemma zaya"},
    {"LlamaTokenizer", "idefics idefics2"},
    {"MPNetTokenizer", "mpnet"},
    {"Qwen2Tokenizer",
     "audioflamingo3 colqwen2 cosmos3_omni dots3_note fun_asr_nano "
     "hunyuan_vl internvl lighton_ocr moss_transcribe_diarize ovis2 "
     "qianfan_ocr qwen2 qwen2_5_omni qwen2_5_vl qwen2_audio qwen2_moe "
     "qwen2_vl qwen3 qwen3_asr qwen3_moe qwen3_next qwen3_omni_moe qwen3_vl "
     "qwen3_vl_moe vibevoice"},
    {"RobertaTokenizer",
     "bart bridgetower clap data2vec-text florence2 ibert lilt longformer "
     "mega mra roberta roberta-prelayernorm"},
    {"the class of this model_type",
     "aimv2 albert aya_vision barthez bartpho bert-generation bert-japanese "
     "bertweet big_bird biogpt blenderbot blenderbot-small byt5 camembert "
     "canine clip clipseg clvp code_llama cohere cohere2 cpm cpmant ctrl "
     "data2vec-audio deberta deberta-v2 dia esm esmc esmfold2 falcon_mamba "
     "flaubert fnet fsmt funnel gpt-sw3 gpt_neox gpt_neox_japanese "
     "granite_speech5_ctc groupvit gte herbert hubert jina_embeddings_v3 "
     "lasr_ctc lasr_encoder layoutlmv2 layoutlmv3 layoutxlm led luke m2m_100 "
     "mamba mamba2 marian markuplm mbart mbart50 metaclip_2 mgp-str mluke "
     "mpt mt5 musicgen musicgen_melody mvp myt5 nemotron3_5_asr "
     "nemotron_asr_streaming nllb nllb-moe nougat olmo olmoe omdet-turbo "
     "omniasr_ctc oneformer openai-gpt owlv2 owlvit parakeet_ctc "
     "parakeet_rnnt parakeet_tdt pegasus perceiver phobert plbart "
     "pp_formulanet prophetnet qwen3_5 qwen3_5_moe qwen3_5_moe_text "
     "qwen3_5_text qwen4_exp rag reformer rembert roc_bert roformer rwkv "
     "sam3 sam3_video seamless_m4t seamless_m4t_v2 siglip siglip2 "
     "speech_to_text speecht5 splinter switch_transformers t5 tapas tipsv2 "
     "trocr udop unispeech unispeech-sat videoprism vits wav2vec2 "
     "wav2vec2-bert wav2vec2-conformer wav2vec2_phoneme whisper xclip xglm "
     "xlm xlm-roberta xlnet xlstm xmod yoso"},
}};

/// The types whose own class is taken, whatever class a folder names.
constexpr std::array<std::string_view, 7> kTypesWithoutChoice{
    "hyperclovax_vision_v2",
    "qwen2",
    "qwen3_5",
    "qwen3_5_moe",
    "qwen3_5_moe_text",
    "qwen4_exp",
    "siglip2"};

/// The names of the generic class, and of classes that are no more.
constexpr std::array<std::string_view, 4> kGenericNames{
    "BloomTokenizer",
    "PreTrainedTokenizer",
    "RetriBertTokenizer",
    kGenericTokenizer};

/// Names of a class of which they are subclasses without changes.
constexpr std::array<std::string_view, 3> kRobertaNames{
    "BartTokenizer",
    "LEDTokenizer",
    "LongformerTokenizer"};

template <typename Names>
bool has_name(const Names& names, std::string_view name) {
  return std::find(names.begin(), names.end(), name) != names.end();
}

/// Returns the class of a model type, empty if there is none.
std::string class_of_type(const std::string& type) {
  for (const auto& row : kModelTypes) {
    for (auto rest = row.types; !rest.empty();) {
      const auto end = std::min(rest.find(' '), rest.size());
      if (rest.substr(0, end) == type) {
        return std::string(row.tokenizer);
      }
      rest.remove_prefix(std::min(end + 1, rest.size()));
    }
  }
  return "";
}

/// Returns the `tokenizer_class` of a configuration without "Fast", empty if
/// there is none.
std::string named_class(const Json& config) {
  auto name = config.get("tokenizer_class").as_text().value_or("");
  const std::string fast = "Fast";
  const auto end = name.size() - std::min(name.size(), fast.size());
  if (name.substr(end) == fast) {
    name.resize(end);
  }
  return has_name(kGenericNames, name) ? kGenericTokenizer
      : has_name(kRobertaNames, name)  ? "RobertaTokenizer"
                                       : name;
}

void check_files(const std::string& path, const Json& config) {
  const auto& code = config.get("auto_map");
  TORCH_ATTENTION_CHECK(
      !code.is_list() && code.get("AutoTokenizer").is_null(),
      "expected a tokenizer of transformers, but the auto_map of \"{}\" names "
      "Python code, as transformers runs with trust_remote_code: {}",
      path,
      code.shown(60));
  for (const auto& file : config.get("fast_tokenizer_files").elements()) {
    TORCH_ATTENTION_CHECK(
        file.as_text() == "tokenizer.json",
        "expected tokenizer.json alone in the fast_tokenizer_files of \"{}\", "
        "but got {}, which is not read",
        path,
        file.shown(60));
  }
}

} // namespace

std::string auto_tokenizer_class(
    const std::string& folder,
    const Json& config,
    bool has_byte_level) {
  check_files(folder + "/tokenizer_config.json", config);
  const auto path = folder + "/config.json";
  const bool has_model = std::filesystem::exists(path);
  const auto model = has_model ? read_config_file(path) : Json::object();
  const auto type = model.get("model_type").as_text().value_or("");
  const auto of_type = class_of_type(type);
  auto named = named_class(config);
  if (named.empty()) {
    named = named_class(model);
  }
  if (named.empty()) {
    return of_type.empty() && has_model ? kGenericTokenizer : of_type;
  }
  if (has_name(kTypesWithoutChoice, type)) {
    return of_type;
  }
  const bool is_generic = of_type == kGenericTokenizer ||
      (named == "LlamaTokenizer" && has_byte_level);
  return is_generic ? kGenericTokenizer : named;
}

bool auto_tokenizer_cuts_left(
    const std::string& folder,
    const Json& config,
    const Json& tokenizer) {
  const auto& side = config.get("truncation_side");
  if (!config.contains("truncation_side")) {
    return tokenizer.get("truncation").get("direction").as_text() == "Left";
  }
  TORCH_ATTENTION_CHECK(
      side.as_text() == "left" || side.as_text() == "right",
      "expected left or right as \"truncation_side\" of "
      "\"{}/tokenizer_config.json\", but got {}",
      folder,
      side.shown(60));
  return side.as_text() == "left";
}

} // namespace torch_attention
