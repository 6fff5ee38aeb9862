#include <tools/heatmap/model.h>

#include <check.h>
#include <torch_attention/models/bert.h>
#include <torch_attention/models/language_model.h>
#include <torch_attention/weights/inspect_pretrained.h>

#include <c10/core/GradMode.h>
#include <c10/util/Exception.h>

#include <ATen/ops/tensor.h>

#include <algorithm>
#include <numeric>
#include <utility>

namespace torch_attention::tools {

namespace {

/// The `model_type` and the number of layers of the model, or of its text if it
/// sees images too.
std::pair<std::string, int64_t> text_model_of(const std::string& folder) {
  const auto model = inspect_pretrained(folder);
  TORCH_ATTENTION_CHECK(
      !model.layers.empty(), "expected a model with layers in \"{}\"", folder);
  const auto part = model.layers.front().part;
  int64_t count = 0;
  for (const auto& found : model.layers) {
    if (found.part == part && !found.is_cross) {
      count += static_cast<int64_t>(found.numbers.size());
    }
  }
  return {model.layers.front().model_type, count};
}

bool is_decoder(const std::string& type) {
  const auto types = models::language_model_types();
  return std::binary_search(types.begin(), types.end(), type);
}

} // namespace

std::vector<std::string> runnable_model_types() {
  auto types = models::language_model_types();
  for (auto& type : models::bert_types()) {
    types.push_back(std::move(type));
  }
  std::sort(types.begin(), types.end());
  return types;
}

std::vector<LayerWeights> weights_of_model(
    const std::string& folder,
    const std::vector<int64_t>& ids,
    std::vector<int64_t> layers) {
  const c10::NoGradGuard no_gradients;
  TORCH_CHECK(!ids.empty(), "expected at least one token");
  const auto [type, count] = text_model_of(folder);
  const auto types = runnable_model_types();
  TORCH_ATTENTION_CHECK(
      std::binary_search(types.begin(), types.end(), type),
      "expected a model_type of {} in \"{}\", which can be run, but got "
      "\"{}\": give what enters the attention of one layer by --input",
      list_text(types, ", "),
      folder,
      type);
  if (layers.empty()) {
    layers.resize(static_cast<size_t>(count));
    std::iota(layers.begin(), layers.end(), 0);
  }
  for (const auto layer : layers) {
    TORCH_ATTENTION_CHECK(
        layer >= 0 && layer < count,
        "expected a layer in [0, {}), which \"{}\" has, but got {}",
        count,
        folder,
        layer);
  }
  const auto places = options_from_config(folder, /*layer=*/0).context_length();
  TORCH_ATTENTION_CHECK(
      static_cast<int64_t>(ids.size()) <= places,
      "expected at most {} tokens, for which \"{}\" has positions, but got "
      "{}",
      places,
      folder,
      ids.size());
  const auto options =
      models::PretrainedModelOptions()
          .num_layers(*std::max_element(layers.begin(), layers.end()) + 1)
          .head(false);
  const auto batch = at::tensor(ids).unsqueeze(0);
  const auto weights = is_decoder(type)
      ? models::language_model_from_pretrained(folder, options)
            ->attention_weights(batch, layers)
      : models::bert_from_pretrained(folder, options)
            ->attention_weights(batch, layers);
  std::vector<LayerWeights> found;
  for (size_t i = 0; i < layers.size(); ++i) {
    found.push_back(
        {layers[i],
         weights[i].squeeze(0),
         options_from_config(folder, layers[i]).causal()});
  }
  return found;
}

} // namespace torch_attention::tools
