#include "language_model.h"

#include "folder.h"
#include "gpt2.h"
#include "llama.h"

namespace gpt {

std::shared_ptr<LanguageModel> load_model(
    const std::string& folder,
    torch::Dtype dtype) {
  const auto type = field<std::string>(read_config(folder), "model_type");
  if (type == "gpt2") {
    return load_gpt2(folder, dtype);
  }
  TORCH_CHECK(
      is_llama_like(type),
      folder,
      ": expected a model of GPT-2, Llama, Mistral, Qwen2, Qwen3 or Gemma but "
      "got the model_type ",
      type);
  return load_llama(folder, dtype);
}

} // namespace gpt
