#include <weights/pretrained/models_file.h>

#include <weights/pretrained/describe.h>
#include <weights/text.h>

#include <c10/util/Exception.h>

#include <array>
#include <string_view>

namespace torch_attention::weights::pretrained {

namespace {

/// The contents of models.json in pieces (cmake/embed_text.cmake).
constexpr std::array kPieces{
#include "models_text.inc"
};

Json read_file() {
  std::string text;
  for (const auto* piece : kPieces) {
    text += piece;
  }
  return Json::parse(text.c_str());
}

std::string text_of(const Json& fields, const char* key) {
  return fields.get(key).as_text().value_or("");
}

/// Returns the entry of a type that another entry refers to.
const Json& entry_of_type(const Json& models, const std::string& model_type) {
  const auto* entry = models.find(model_type);
  TORCH_INTERNAL_ASSERT(
      entry != nullptr, "models.json has no \"", model_type, "\"");
  return *entry;
}

/// Returns the value of a key in an entry, or in the entry that it is `like`.
const Json& inherited(const Json& models, const Json& entry, const char* key) {
  const auto* fields = &entry;
  while (!fields->contains(key) && fields->contains("like")) {
    fields = &entry_of_type(models, text_of(*fields, "like"));
  }
  return fields->get(key);
}

/// Appends the steps of an entry, with the steps of other types in place of
/// "like: TYPE".
void add_steps(
    const Json& models,
    const Json& entry,
    std::vector<Step>& steps) {
  constexpr std::string_view kLike = "like: ";
  for (const auto& each : inherited(models, entry, "describe").elements()) {
    const auto text = each.as_text().value_or("");
    if (starts_with(text, kLike)) {
      add_steps(
          models, entry_of_type(models, text.substr(kLike.size())), steps);
    } else {
      steps.push_back(read_step(text));
    }
  }
}

SizeNames size_names(const Json& sizes) {
  SizeNames names;
  const auto take = [&](const char* key, std::string& name) {
    if (sizes.contains(key)) {
      name = text_of(sizes, key);
    }
  };
  take("size", names.size);
  take("heads", names.heads);
  take("layers", names.layers);
  take("length", names.length);
  take("more_layers", names.more_layers);
  names.missing_layers = sizes.get("missing_layers").as_integer().value_or(0);
  return names;
}

StageNames stage_names(const Json& stages) {
  StageNames names;
  for (const auto& count : stages.get("layers").elements()) {
    names.fixed.push_back(count.as_integer().value());
  }
  if (names.fixed.empty()) {
    names.field = text_of(stages, "layers");
  }
  names.count = text_of(stages, "count");
  names.first = stages.get("first").as_integer().value_or(0);
  names.doubles = stages.get("doubles").as_flag().value_or(false);
  return names;
}

Family read_family(const Json& models, const Json& entry) {
  const auto value = [&](const char* key) -> const Json& {
    return inherited(models, entry, key);
  };
  const auto text = [&](const char* key) {
    return value(key).as_text().value_or("");
  };
  Family family;
  family.path = text("path");
  add_steps(models, entry, family.steps);
  family.names = size_names(value("sizes"));
  family.head_size = value("head_size").as_integer().value_or(0);
  family.layer_count = value("layer_count").as_integer().value_or(0);
  family.stages = stage_names(value("stages"));
  family.decoder_path = text("decoder_path");
  family.cross_path = text("cross_path");
  family.decoder_names = size_names(value("decoder_sizes"));
  family.audio_path = text("audio_path");
  family.audio_names = size_names(value("audio_sizes"));
  family.has_own_configs = value("own_configs").as_flag().value_or(false);
  family.cross_flag = text("cross_flag");
  return family;
}

ModelEntry read_entry(const Json& models, const Json& fields) {
  ModelEntry entry;
  entry.refused = text_of(fields, "refused");
  entry.parts = fields.get("parts");
  entry.stacks = fields.get("stacks");
  entry.inner = fields.get("inner");
  entry.latent = text_of(fields, "latent");
  entry.indexer = text_of(fields, "indexer");
  entry.has_shared_indexers =
      fields.get("shared_indexers").as_flag().value_or(false);
  entry.reads_layers = fields.get("per_layer").as_flag().value_or(false);
  if (fields.contains("describe") || fields.contains("like")) {
    entry.family = read_family(models, fields);
  }
  if (const auto* defaults = fields.find("defaults")) {
    entry.defaults = *defaults;
  }
  if (const auto* names = fields.find("names")) {
    entry.defaults.set("names", *names);
  }
  return entry;
}

std::map<std::string, ModelEntry> read_models() {
  const auto models = read_file();
  std::map<std::string, ModelEntry> entries;
  for (const auto& [model_type, fields] : models.fields()) {
    entries.emplace(model_type, read_entry(models, fields));
  }
  return entries;
}

} // namespace

const std::map<std::string, ModelEntry>& model_entries() {
  static const auto entries = read_models();
  return entries;
}

const Family* family_of(const std::string& model_type) {
  const auto found = model_entries().find(model_type);
  return found == model_entries().end() || !found->second.family
      ? nullptr
      : &*found->second.family;
}

Json default_fields(const std::string& model_type) {
  const auto found = model_entries().find(model_type);
  return found == model_entries().end() ? Json::object()
                                        : found->second.defaults;
}

void describe_as(Layer& layer, const std::string& model_type) {
  const auto* family = family_of(model_type);
  TORCH_INTERNAL_ASSERT(
      family != nullptr, "models.json has no \"", model_type, "\"");
  for (const auto& step : family->steps) {
    step.run(layer, step.arguments);
  }
}

} // namespace torch_attention::weights::pretrained
