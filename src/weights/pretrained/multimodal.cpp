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
  model.inside_type = text("inside_type");
  const auto& fixed = parts.get("fixed").elements();
  for (const auto part : model.parts()) {
    if (std::count(fixed.begin(), fixed.end(), Json(name_of(part))) > 0) {
      model.fixed.push_back(part);
    }
  }
  model.may_be_flat = parts.contains("flat");
  for (const auto& field : parts.get("flat").elements()) {
    model.ignored_if_flat.push_back(field.as_text().value_or(""));
  }
  model.text_defaults = parts.get("text_defaults");
  if (parts.contains("vision_field")) {
    model.vision_field = text("vision_field");
  }
  model.older_vision_field = text("older_vision_field");
  if (parts.contains("audio_field")) {
    model.audio_field = text("audio_field");
  }
  model.has_config_dicts = parts.get("config_dicts").as_flag().value_or(false);
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

/// Returns the field with the configuration of the image encoder.
const std::string& vision_field_of(
    ModelConfig& config,
    const Multimodal& model) {
  return !model.older_vision_field.empty() && !config.has(model.vision_field)
      ? model.older_vision_field
      : model.vision_field;
}

/// Returns the configuration of a text model of this type at the top level, as
/// older files have it. Throws c10::Error if it has no sizes, or if it is of
/// another part.
ModelConfig flat_config(
    ModelConfig config,
    const Multimodal& model,
    bool is_text,
    const std::string& field,
    const std::string& type) {
  const auto* family = family_of(type);
  const auto names = family == nullptr ? SizeNames() : family->names;
  const auto aliases = default_fields(type).get("names");
  const auto has = [&](const std::string& name) {
    return config.has(name) ||
        config.has(aliases.get(name).as_text().value_or(name));
  };
  TORCH_ATTENTION_CHECK(
      is_text && model.may_be_flat && has(names.size) && has(names.heads) &&
          has(names.layers),
      "expected \"{}\" in \"{}\", which has none",
      field,
      config.path());
  for (const auto& ignored : model.ignored_if_flat) {
    config.forget(ignored);
  }
  return config;
}

/// Returns the configuration with those of the parts.
ModelConfig outer_of_parts(ModelConfig& config, const Multimodal& model) {
  if (model.inside.empty()) {
    return config;
  }
  auto inner = config.nested(model.inside);
  const auto type = inner.text("model_type").value_or(model.inside_type);
  TORCH_ATTENTION_CHECK(
      model.inside_type.empty() || type == model.inside_type,
      "expected model_type \"{}\" in \"{}\", but got \"{}\"",
      model.inside_type,
      inner.path(),
      type);
  return inner;
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
  auto config = outer_of_parts(outer, model);
  const bool is_text = part == PretrainedPart::kText;
  const bool is_vision = part == PretrainedPart::kVision;
  std::string field = is_text ? "text_config"
      : is_vision             ? vision_field_of(config, model)
                              : model.audio_field;
  // The class then ignores all that the other field has.
  if (model.has_config_dicts && config.has(field + "_dict")) {
    field += "_dict";
  }
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
  const auto blocks = is_text ? model.blocks : ImageBlocks::kNone;
  if (!config.has(field)) {
    return {
        flat_config(config, model, is_text, field, type),
        type,
        part,
        within,
        /*root=*/"",
        blocks};
  }
  auto inner = config.nested(field);
  if (is_text) {
    inner.add_missing(model.text_defaults);
  }
  TORCH_ATTENTION_CHECK(
      !inner.has("text_config"),
      "expected the fields of a {} as \"{}\" of \"{}\", but got a model with a "
      "text_config of its own",
      type,
      field,
      config.path());
  const auto own_type = inner.text("model_type").value_or(type);
  // Released files may have the type of the multimodal model there.
  const bool is_given = find_multimodal(own_type) != nullptr ||
      std::count(model.fixed.begin(), model.fixed.end(), part) > 0;
  return {
      std::move(inner),
      is_given ? type : own_type,
      part,
      within,
      /*root=*/"",
      blocks};
}

} // namespace torch_attention::weights::pretrained
