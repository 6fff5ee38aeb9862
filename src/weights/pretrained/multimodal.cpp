#include <weights/pretrained/multimodal.h>

#include <format_text.h>

#include <c10/util/Exception.h>

#include <algorithm>
#include <map>
#include <utility>

namespace torch_attention::weights::pretrained {

namespace {

Multimodal with_blocks(Multimodal model, ImageBlocks blocks) {
  model.blocks = blocks;
  return model;
}

const std::map<std::string, Multimodal>& models() {
  constexpr auto* kClip = "clip_vision_model";
  constexpr auto* kSiglip = "siglip_vision_model";
  static const std::map<std::string, Multimodal> table{
      {"aimv2", {"aimv2_text_model", "aimv2_vision_model", false}},
      {"align", {"align_text_model", "", false}},
      {"altclip", {"altclip_text_model", "altclip_vision_model", false}},
      {"apertus1p5", {"apertus1p5_text", ""}},
      {"aria", {"aria_text", "idefics3_vision"}},
      {"audioflamingo3", {"qwen2", "", true, "audioflamingo3_encoder"}},
      {"aya_vision", {"cohere2", kSiglip}},
      {"blip", {"blip_text_model", "blip_vision_model", false}},
      {"blip-2", {"opt", "blip_2_vision_model"}},
      {"bridgetower", {"bridgetower_text_model", "", false}},
      {"chinese_clip",
       {"chinese_clip_text_model", "chinese_clip_vision_model", false}},
      {"clap", {"clap_text_model", "", false}},
      {"clip", {"clip_text_model", kClip, false}},
      {"clipseg", {"clipseg_text_model", "clipseg_vision_model", false}},
      {"cohere2_vision", {"cohere2", kSiglip}},
      {"cohere_compass", {"cohere_compass_text"}},
      {"colmodernvbert", {"modernbert", kSiglip, true, "", "vlm_config"}},
      {"colpali",
       with_blocks(
           {"gemma", kSiglip, true, "", "vlm_config"}, ImageBlocks::kAll)},
      {"colqwen2",
       {"qwen2_vl_text", "qwen2_vl_vision", true, "", "vlm_config"}},
      {"cosmos3_edge", {"cosmos3_edge_text"}},
      {"cosmos3_omni", {"qwen3_vl_text", "qwen3_vl_vision"}},
      {"deepseek_ocr2", {"deepseek_ocr2_text"}},
      {"deepseek_vl", {"llama", kSiglip}},
      {"deepseek_vl_hybrid", {"llama", kSiglip}},
      {"embedding_gemma2", {"embedding_gemma2_text", ""}},
      {"emu3", {"emu3_text_model", ""}},
      {"ernie4_5_vl_moe", {"ernie4_5_vl_moe_text", "ernie4_5_vl_moe_vision"}},
      {"exaone4_5", {"exaone4", ""}},
      {"fast_vlm", {"qwen2"}},
      {"flava", {"flava_text_model", "", false, "", "", "text_model"}},
      {"fun_asr_nano", {"qwen3"}},
      {"fuyu", {"persimmon"}},
      {"gemma3", with_blocks({"gemma3_text", kSiglip}, ImageBlocks::kSome)},
      {"gemma3n", {"gemma3n_text", ""}},
      {"gemma4", with_blocks({"gemma4_text", ""}, ImageBlocks::kSome)},
      {"gemma4_unified",
       with_blocks({"gemma4_unified_text", ""}, ImageBlocks::kSome)},
      {"git", with_blocks({"git", "git_vision_model"}, ImageBlocks::kAll)},
      {"glm46v", {"glm4v_text", "glm4v_vision"}},
      {"glm4v", {"glm4v_text", "glm4v_vision"}},
      {"glm4v_moe", {"glm4v_moe_text", "glm4v_moe_vision"}},
      {"glm_image", {"glm_image_text"}},
      {"glm_ocr", {"glm_ocr_text", "glm_ocr_vision"}},
      {"glmasr", {"llama", "", true, "glmasr_encoder"}},
      {"glmga", {"glm4v_text", "glm4v_vision"}},
      {"got_ocr2", {"qwen2", ""}},
      {"granite4_vision", {"granite4_vision_text", kClip}},
      {"granite_docling", {"granite_docling_text"}},
      {"granite_speech", {"granite", ""}},
      {"granite_speech_plus", {"granite"}},
      {"groupvit", {"groupvit_text_model", "", false}},
      {"hunyuan_vl", {"hunyuan_vl_text"}},
      {"hyperclovax_vision_v2", {"hyperclovax", "qwen2_5_vl_vision"}},
      {"idefics", {"idefics", "idefics_vision"}},
      {"idefics2", {"mistral", "idefics2_vision", true, "", "", "text_model"}},
      {"idefics3", {"llama", "idefics3_vision"}},
      {"instructblip", {"opt", "instructblip_vision_model"}},
      {"instructblipvideo", {"opt", "instructblipvideo_vision_model"}},
      {"internvl", {"qwen2", "internvl_vision"}},
      {"janus", {"llama", "janus_vision_model"}},
      {"jev", {"qwen3_5_text"}},
      {"kosmos-2.5", {"kosmos_2_5_text_model", "kosmos_2_5_vision_model"}},
      {"lfm2_vl", {"lfm2", "siglip2_vision_model"}},
      {"lighton_ocr", {"qwen3", "pixtral"}},
      {"llama4", {"llama4_text", "llama4_vision_model"}},
      {"llava", {"llama", kClip}},
      {"llava_next", {"llama", kClip}},
      {"llava_next_video", {"llama", kClip}},
      {"llava_onevision", {"qwen2", kSiglip}},
      {"metaclip_2",
       {"metaclip_2_text_model", "metaclip_2_vision_model", false}},
      {"minicpm_ocr", {"qwen3_5_text"}},
      {"minicpmv4_6", {"qwen3_5_text"}},
      {"minicpmv4_7", {"qwen3_5_text"}},
      {"mistral3", {"mistral", "pixtral"}},
      {"mllama", {"mllama_text_model"}},
      {"modernvbert", {"modernbert", kSiglip}},
      {"molmo2", with_blocks({"molmo2_text"}, ImageBlocks::kSome)},
      {"moss_transcribe_diarize", {"qwen3"}},
      {"musicflamingo", {"qwen2", "", true, "audioflamingo3_encoder"}},
      {"nemo_speechlm", {"nemotron_h"}},
      {"nemotron_h_omni", {"nemotron_h"}},
      {"omniasr", {"llama", "", true, "omniasr_audio"}},
      {"ovis2", {"qwen2", "ovis2_vision"}},
      {"owlv2", {"owlv2_text_model", "owlv2_vision_model", false}},
      {"owlvit", {"owlvit_text_model", "owlvit_vision_model", false}},
      {"paddleocr_vl", {"paddleocr_vl_text", "paddleocr_vl_vision"}},
      {"paligemma", with_blocks({"gemma", kSiglip}, ImageBlocks::kAll)},
      {"perception_lm", {"llama", ""}},
      {"phi4_multimodal", {"phi4_multimodal", "phi4_multimodal_vision"}},
      {"pp_chart2table", {"qwen2"}},
      {"qianfan_ocr", {"qwen3", "qianfan_ocr_vision"}},
      {"qwen2_5_omni",
       {"qwen2_5_omni_text",
        "qwen2_5_omni_vision_encoder",
        true,
        "qwen2_5_omni_audio_encoder",
        "thinker_config",
        "thinker."}},
      {"qwen2_5_omni_thinker",
       {"qwen2_5_omni_text",
        "qwen2_5_omni_vision_encoder",
        true,
        "qwen2_5_omni_audio_encoder"}},
      {"qwen2_5_vl", {"qwen2_5_vl_text", "qwen2_5_vl_vision"}},
      {"qwen2_audio", {"qwen2", "", true, "qwen2_audio_encoder"}},
      {"qwen2_vl", {"qwen2_vl_text", "qwen2_vl_vision"}},
      {"qwen3_5", {"qwen3_5_text", "qwen3_5_vision"}},
      {"qwen3_5_moe", {"qwen3_5_moe_text", "qwen3_5_moe_vision"}},
      {"qwen3_asr", {"qwen3", "", true, "qwen3_asr_encoder"}},
      {"qwen3_omni_moe",
       {"qwen3_omni_moe_text",
        "qwen3_omni_moe_vision_encoder",
        true,
        "qwen3_omni_moe_audio_encoder",
        "thinker_config",
        "thinker."}},
      {"qwen3_omni_moe_thinker",
       {"qwen3_omni_moe_text",
        "qwen3_omni_moe_vision_encoder",
        true,
        "qwen3_omni_moe_audio_encoder"}},
      {"qwen3_vl", {"qwen3_vl_text", "qwen3_vl_vision"}},
      {"qwen3_vl_moe", {"qwen3_vl_moe_text", "qwen3_vl_moe_vision"}},
      {"shieldgemma2",
       with_blocks({"gemma3_text", kSiglip}, ImageBlocks::kSome)},
      {"siglip", {"siglip_text_model", kSiglip, false}},
      {"siglip2", {"siglip2_text_model", "siglip2_vision_model", false}},
      {"smolvlm", {"llama", "smolvlm_vision"}},
      {"vibevoice", {"qwen2"}},
      {"vibevoice_asr", {"qwen2"}},
      {"video_llama_3", {"qwen2", "video_llama_3_vision"}},
      {"video_llava", {"llama", kClip, true, "", "", "", "image_tower"}},
      {"vipllava", {"llama", kClip}},
      {"voxtral", {"llama", "", true, "voxtral_encoder"}},
      {"voxtral_realtime",
       {"voxtral_realtime_text", "", true, "voxtral_realtime_encoder"}},
      {"xclip", {"xclip_text_model", "", false, "", "", "text_model"}},
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
    case PretrainedPart::kAudio:
      return "audio";
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

std::vector<PretrainedPart> Multimodal::parts() const {
  std::vector<PretrainedPart> result{PretrainedPart::kText};
  if (!vision.empty()) {
    result.push_back(PretrainedPart::kVision);
  }
  if (!audio.empty()) {
    result.push_back(PretrainedPart::kAudio);
  }
  return result;
}

ModelPart part_of(
    ModelConfig& whole,
    const Multimodal& model,
    PretrainedPart part) {
  if (part == PretrainedPart::kAuto && model.is_decoder) {
    part = PretrainedPart::kText;
  }
  const auto parts = model.parts();
  std::vector<std::string> names;
  for (const auto each : parts) {
    names.push_back(
        each == PretrainedPart::kText         ? "kText"
            : each == PretrainedPart::kVision ? "kVision"
                                              : "kAudio");
  }
  TORCH_CHECK(
      std::find(parts.begin(), parts.end(), part) != parts.end(),
      format_text(
          "the model of \"{}\" has the parts PretrainedPart::{}, but part is {}",
          whole.path(),
          fmt::join(names, " and "),
          name_of(part)));
  auto config = model.inside.empty() ? whole : whole.nested(model.inside);
  const bool is_text = part == PretrainedPart::kText;
  const bool is_vision = part == PretrainedPart::kVision;
  const auto* field = is_text ? "text_config"
      : is_vision             ? "vision_config"
                              : "audio_config";
  const auto& type = is_text ? model.text
      : is_vision            ? model.vision
                             : model.audio;
  const auto within = is_text ? model.text_within
      : is_vision             ? model.vision_within
                              : std::string();
  // Some classes make the mask of their text by the field of the whole.
  TORCH_CHECK(
      !is_text || !model.is_decoder || config.flag("is_causal").value_or(true),
      format_text(
          "expected is_causal = true in \"{}\", whose text is causal, but got "
          "false",
          config.path()));
  // Older files have the fields of the text beside those of the model.
  const auto blocks = is_text ? model.blocks : ImageBlocks::kNone;
  if (!config.has(field)) {
    return {config, type, part, within, /*root=*/"", blocks};
  }
  auto inner = config.nested(field);
  const auto own_type = inner.text("model_type").value_or(type);
  // Released files may have the type of a whole model there.
  const bool is_whole = find_multimodal(own_type) != nullptr;
  return {
      std::move(inner),
      is_whole ? type : own_type,
      part,
      within,
      /*root=*/"",
      blocks};
}

} // namespace torch_attention::weights::pretrained
