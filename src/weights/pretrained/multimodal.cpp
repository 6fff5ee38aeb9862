#include <weights/pretrained/multimodal.h>

#include <check.h>
#include <format_text.h>
#include <weights/pretrained/models_file.h>

#include <algorithm>
#include <map>
#include <utility>

namespace torch_attention::weights::pretrained {

namespace {

Multimodal read_parts(const Json& parts) {
  const auto text = [&](const char* key) {
    return parts.get(key).as_text().value_or("");
  };
  Multimodal model;
  model.text = text("text");
  model.vision = text("vision");
  model.audio = text("audio");
  model.has_default = !parts.get("no_default").as_flag().value_or(false);
  model.inside = text("inside");
  if (parts.contains("vision_field")) {
    model.vision_field = text("vision_field");
  }
  model.text_within = text("text_within");
  model.vision_within = text("vision_within");
  const auto blocks = text("blocks");
  model.blocks = blocks == "all" ? ImageBlocks::kAll
      : blocks == "some"         ? ImageBlocks::kSome
                                 : ImageBlocks::kNone;
  return model;
}

const std::map<std::string, Multimodal>& models() {
  static const auto table = [] {
    std::map<std::string, Multimodal> all;
    for (const auto& [type, entry] : model_entries()) {
      if (entry.parts.is_object()) {
        all.emplace(type, read_parts(entry.parts));
      }
    }
    return all;
  }();
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
    ModelConfig& outer,
    const Multimodal& model,
    PretrainedPart part) {
  if (part == PretrainedPart::kAuto && model.has_default) {
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
  TORCH_ATTENTION_CHECK(
      std::find(parts.begin(), parts.end(), part) != parts.end(),
      "the model of \"{}\" has the parts PretrainedPart::{}, but part is {}",
      outer.path(),
      fmt::join(names, " and "),
      name_of(part));
  auto config = model.inside.empty() ? outer : outer.nested(model.inside);
  const bool is_text = part == PretrainedPart::kText;
  const bool is_vision = part == PretrainedPart::kVision;
  const auto field = is_text ? std::string("text_config")
      : is_vision            ? model.vision_field
                             : std::string("audio_config");
  const auto& type = is_text ? model.text
      : is_vision            ? model.vision
                             : model.audio;
  const auto within = is_text ? model.text_within
      : is_vision             ? model.vision_within
                              : std::string();
  // Some classes make the mask of their text model by the outer field.
  TORCH_ATTENTION_CHECK(
      !is_text || !model.has_default || config.flag("is_causal").value_or(true),
      "expected is_causal = true in \"{}\", whose text is causal, but got "
      "false",
      config.path());
  // Older files have no text_config, but its fields in the outer configuration.
  const auto blocks = is_text ? model.blocks : ImageBlocks::kNone;
  if (!config.has(field)) {
    return {config, type, part, within, /*root=*/"", blocks};
  }
  auto inner = config.nested(field);
  const auto own_type = inner.text("model_type").value_or(type);
  // Released files may have the type of the multimodal model there.
  const bool is_multimodal = find_multimodal(own_type) != nullptr;
  return {
      std::move(inner),
      is_multimodal ? type : own_type,
      part,
      within,
      /*root=*/"",
      blocks};
}

} // namespace torch_attention::weights::pretrained
