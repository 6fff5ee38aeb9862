#include "language_model.h"

#include "folder.h"
#include "gpt2.h"
#include "llama.h"

#include <torch/utils.h>

namespace gpt {

namespace {

/// Moves all parameters into one piece of memory, which `expect_weights` has
/// given huge pages.
void join_weights(torch::nn::Module& model) {
  constexpr int64_t kAlignment = 64;
  const auto rounded = [](int64_t bytes) {
    return (bytes + kAlignment - 1) / kAlignment * kAlignment;
  };
  int64_t size = 0;
  for (const auto& parameter : model.parameters()) {
    size += rounded(static_cast<int64_t>(parameter.nbytes()));
  }
  const auto memory = torch::empty({size}, torch::kByte);
  int64_t begin = 0;
  for (auto& parameter : model.parameters()) {
    const auto bytes = static_cast<int64_t>(parameter.nbytes());
    const auto place = memory.narrow(0, begin, bytes)
                           .view(parameter.scalar_type())
                           .view(parameter.sizes());
    place.copy_(parameter.detach());
    parameter.set_data(place);
    begin += rounded(bytes);
  }
}

std::shared_ptr<LanguageModel> load_any(
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

} // namespace

std::shared_ptr<LanguageModel> load_model(
    const std::string& folder,
    torch::Dtype dtype) {
  auto model = load_any(folder, dtype);
  join_weights(*model);
  return model;
}

} // namespace gpt
