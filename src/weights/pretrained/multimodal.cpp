#include <weights/pretrained/multimodal.h>

#include <format_text.h>

#include <c10/util/Exception.h>

#include <map>

namespace torch_attention::weights::pretrained {

namespace {

const std::map<std::string, Multimodal>& models() {
  constexpr auto* kClip = "clip_vision_model";
  constexpr auto* kSiglip = "siglip_vision_model";
  static const std::map<std::string, Multimodal> table{
      {"altclip", {"altclip_text_model", "altclip_vision_model", false}},
      {"aria", {"aria_text", ""}},
      {"aya_vision", {"cohere2", kSiglip}},
      {"blip", {"blip_text_model", "blip_vision_model", false}},
      {"blip-2", {"opt", "blip_2_vision_model"}},
      {"clip", {"clip_text_model", kClip, false}},
      {"clipseg", {"clipseg_text_model", "clipseg_vision_model", false}},
      {"cohere2_vision", {"cohere2", kSiglip}},
      {"deepseek_vl", {"llama", kSiglip}},
      {"embedding_gemma2", {"embedding_gemma2_text", ""}},
      {"emu3", {"emu3_text_model", ""}},
      {"exaone4_5", {"exaone4", ""}},
      {"chinese_clip",
       {"chinese_clip_text_model", "chinese_clip_vision_model", false}},
      {"gemma3", {"gemma3_text", kSiglip}},
      {"gemma3n", {"gemma3n_text", ""}},
      {"gemma4", {"gemma4_text", ""}},
      {"gemma4_unified", {"gemma4_unified_text", ""}},
      {"glm4v", {"glm4v_text", "glm4v_vision"}},
      {"glm4v_moe", {"glm4v_moe_text", "glm4v_moe_vision"}},
      {"glm_ocr", {"glm_ocr_text", "glm_ocr_vision"}},
      {"got_ocr2", {"qwen2", ""}},
      {"granite_speech", {"granite", ""}},
      {"idefics3", {"llama", "idefics3_vision"}},
      {"instructblip", {"llama", "instructblip_vision_model"}},
      {"internvl", {"qwen2", "internvl_vision"}},
      {"janus", {"llama", ""}},
      {"lfm2_vl", {"lfm2", "siglip2_vision_model"}},
      {"lighton_ocr", {"qwen3", "pixtral"}},
      {"llama4", {"llama4_text", "llama4_vision_model"}},
      {"llava", {"llama", kClip}},
      {"llava_next", {"llama", kClip}},
      {"llava_next_video", {"llama", kClip}},
      {"llava_onevision", {"qwen2", kSiglip}},
      {"metaclip_2",
       {"metaclip_2_text_model", "metaclip_2_vision_model", false}},
      {"mistral3", {"mistral", "pixtral"}},
      {"owlv2", {"owlv2_text_model", "owlv2_vision_model", false}},
      {"owlvit", {"owlvit_text_model", "owlvit_vision_model", false}},
      {"ovis2", {"qwen2", ""}},
      {"perception_lm", {"llama", ""}},
      {"qwen2_audio", {"qwen2", ""}},
      {"qwen2_5_vl", {"qwen2_5_vl_text", "qwen2_5_vl_vision"}},
      {"qwen2_vl", {"qwen2_vl_text", "qwen2_vl_vision"}},
      {"qwen3_5", {"qwen3_5_text", "qwen3_5_vision"}},
      {"qwen3_5_moe", {"qwen3_5_moe_text", "qwen3_5_moe_vision"}},
      {"qwen3_vl", {"qwen3_vl_text", "qwen3_vl_vision"}},
      {"qwen3_vl_moe", {"qwen3_vl_moe_text", "qwen3_vl_moe_vision"}},
      {"smolvlm", {"llama", "smolvlm_vision"}},
      {"siglip2", {"siglip2_text_model", "siglip2_vision_model", false}},
      {"siglip", {"siglip_text_model", kSiglip, false}},
      {"shieldgemma2", {"gemma3_text", kSiglip}},
      {"video_llava", {"llama", kClip}},
      {"vipllava", {"llama", kClip}},
      {"voxtral", {"llama", ""}},
  };
  return table;
}

} // namespace

std::string name_of(PretrainedPart part) {
  switch (part) {
    case PretrainedPart::kAuto:
      return "auto";
    case PretrainedPart::kEncoder:
      return "encoder";
    case PretrainedPart::kDecoder:
      return "decoder";
    case PretrainedPart::kText:
      return "text";
    case PretrainedPart::kVision:
      return "vision";
  }
  return std::to_string(static_cast<int>(part));
}

const Multimodal* find_multimodal(const std::string& model_type) {
  const auto found = models().find(model_type);
  return found == models().end() ? nullptr : &found->second;
}

std::vector<std::string> multimodal_types() {
  std::vector<std::string> types;
  for (const auto& [type, model] : models()) {
    types.push_back(type);
  }
  return types;
}

ModelPart part_of(
    ModelConfig& config,
    const Multimodal& model,
    PretrainedPart part) {
  if (part == PretrainedPart::kAuto && model.is_decoder) {
    part = PretrainedPart::kText;
  }
  const bool is_text = part == PretrainedPart::kText;
  TORCH_CHECK(
      is_text || (part == PretrainedPart::kVision && !model.vision.empty()),
      format_text(
          "the model of \"{}\" has the parts {}, but part is {}",
          config.path(),
          model.vision.empty() ? "PretrainedPart::kText"
                               : "PretrainedPart::kText and kVision",
          name_of(part)));
  const auto* field = is_text ? "text_config" : "vision_config";
  const auto& type = is_text ? model.text : model.vision;
  // Older files have the fields of the text beside those of the model.
  if (!config.has(field)) {
    return {config, type, part};
  }
  auto inner = config.nested(field);
  const auto own_type = inner.text("model_type").value_or(type);
  // Released files may have the type of the whole model there.
  const bool is_whole = own_type == config.text("model_type");
  return {std::move(inner), is_whole ? type : own_type, part};
}

} // namespace torch_attention::weights::pretrained
