#include <torch_attention/models/language_model.h>

#include <check.h>
#include <models/layers.h>
#include <models/llama_types.h>
#include <torch_attention/models/gpt2.h>
#include <torch_attention/models/llama.h>

#include <algorithm>

namespace torch_attention::models {

std::shared_ptr<LanguageModel> language_model_from_pretrained(
    const std::string& folder,
    const PretrainedModelOptions& options) {
  const auto type = text_layers_of(folder, options).model_type;
  if (type == "gpt2") {
    return gpt2_from_pretrained(folder, options).ptr();
  }
  TORCH_ATTENTION_CHECK(
      is_llama_like(type),
      "expected a model_type of {} in \"{}\", but got \"{}\"",
      list_text(language_model_types(), ", "),
      folder,
      type);
  return llama_from_pretrained(folder, options).ptr();
}

std::vector<std::string> language_model_types() {
  std::vector<std::string> types(kLlamaTypes.begin(), kLlamaTypes.end());
  types.emplace_back("gpt2");
  std::sort(types.begin(), types.end());
  return types;
}

} // namespace torch_attention::models
