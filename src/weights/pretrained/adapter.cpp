#include <weights/pretrained/adapter.h>

#include <check.h>
#include <config_file.h>
#include <format_text.h>
#include <json_tree.h>
#include <weights/folder.h>
#include <weights/text.h>

#include <sys/stat.h>

#include <exception>
#include <string>
#include <vector>

namespace torch_attention::weights::pretrained {

namespace {

constexpr auto* kConfig = "adapter_config.json";

bool is_there(const std::string& file) {
  struct stat status {};
  return ::stat(file.c_str(), &status) == 0;
}

/// Returns the path of the file `name` in the folder `path`, or in the folder
/// of the file `path`.
std::string beside(const std::string& path, const std::string& name) {
  const auto inside = file_in(path, name);
  return inside != path ? inside : folder_of(path) + name;
}

/// Describes an adapter: its kind, the modules that it changes, and its base
/// model, if the configuration has them.
std::string words_of(const std::string& file) {
  Json fields = Json::object();
  try {
    fields = read_config_file(file);
  } catch (const std::exception&) {
    // The adapter is refused in any case.
  }
  auto words = fields.get("peft_type").as_text().value_or("of an unknown kind");
  const auto& targets = fields.get("target_modules");
  constexpr size_t kMostShown = 80;
  if (!targets.is_null()) {
    words += format_text(" of {}", targets.shown(kMostShown));
  }
  const auto& base = fields.get("base_model_name_or_path");
  if (!base.is_null()) {
    words += format_text(", for {}", base.shown(kMostShown));
  }
  return words;
}

} // namespace

void check_no_adapter(const std::string& path, const std::string& merged) {
  const auto has = [&](const char* name) {
    return is_there(beside(path, name));
  };
  const bool has_weights =
      has("adapter_model.safetensors") || has("adapter_model.bin");
  const bool has_model = has("config.json") &&
      (has("model.safetensors") || has("model.safetensors.index.json") ||
       has("pytorch_model.bin") || has("pytorch_model.bin.index.json"));
  const bool has_adapter = has(kConfig) || (has_weights && !has("config.json"));
  if (!has_adapter || (has_model && !merged.empty())) {
    return;
  }
  const auto file = beside(path, has(kConfig) ? kConfig : "adapter_model");
  const auto words = has(kConfig) ? words_of(file) : "without configuration";
  TORCH_ATTENTION_CHECK(
      has_model,
      "\"{}\" holds an adapter alone ({}), and no model: give the folder of its "
      "model, and this one as PretrainedOptions().adapter, which merges LoRA. "
      "Others are merged in Python by PeftModel.from_pretrained, "
      "merge_and_unload() and save_pretrained into another folder",
      path,
      words);
  TORCH_ATTENTION_CHECK(
      false,
      "\"{}\" is an adapter ({}) beside the model, which transformers "
      "applies to it: PretrainedOptions().adapter with this folder merges LoRA. "
      "Others are merged in Python by PeftModel.from_pretrained, "
      "merge_and_unload() and save_pretrained into another folder; without "
      "the adapter's files in this one the model is loaded alone",
      file,
      words);
}

} // namespace torch_attention::weights::pretrained
