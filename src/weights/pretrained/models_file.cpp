#include <weights/pretrained/models_file.h>

#include <array>

namespace torch_attention::weights::pretrained {

namespace {

/// The text of models.json in pieces (cmake/embed_text.cmake).
constexpr std::array kPieces{
#include "models_text.inc"
};

ModelEntry entry_of(const Json& fields) {
  ModelEntry entry;
  entry.refused = fields.get("refused").as_text().value_or("");
  if (const auto* defaults = fields.find("defaults")) {
    entry.defaults = *defaults;
  }
  if (const auto* names = fields.find("names")) {
    entry.defaults.set("names", *names);
  }
  return entry;
}

std::map<std::string, ModelEntry> read_models() {
  std::string text;
  for (const auto* piece : kPieces) {
    text += piece;
  }
  std::map<std::string, ModelEntry> entries;
  const auto models = Json::parse(text.c_str());
  for (const auto& [model_type, fields] : models.fields()) {
    entries.emplace(model_type, entry_of(fields));
  }
  return entries;
}

} // namespace

const std::map<std::string, ModelEntry>& model_entries() {
  static const auto entries = read_models();
  return entries;
}

Json default_fields(const std::string& model_type) {
  const auto found = model_entries().find(model_type);
  return found == model_entries().end() ? Json::object()
                                        : found->second.defaults;
}

} // namespace torch_attention::weights::pretrained
