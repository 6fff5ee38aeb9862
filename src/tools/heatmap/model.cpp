#include <tools/heatmap/model.h>

#include <format_text.h>
#include <torch_attention/weights/inspect_pretrained.h>

#include <c10/core/GradMode.h>
#include <c10/util/Exception.h>

#include <ATen/ops/tensor.h>

#include <algorithm>
#include <map>
#include <numeric>
#include <utility>

namespace torch_attention::tools {

namespace {

using Runner = void (*)(ModelRun&);

const std::map<std::string, Runner>& runners() {
  static const std::map<std::string, Runner> table{
      {"bert", run_bert_like},
      {"camembert", run_bert_like},
      {"distilbert", run_bert_like},
      {"electra", run_bert_like},
      {"gemma", run_llama_like},
      {"gemma2", run_llama_like},
      {"gemma3_text", run_llama_like},
      {"gpt2", run_gpt2},
      {"llama", run_llama_like},
      {"mistral", run_llama_like},
      {"qwen2", run_llama_like},
      {"qwen3", run_llama_like},
      {"roberta", run_bert_like},
      {"xlm-roberta", run_bert_like}};
  return table;
}

/// The `model_type` and the number of layers of the model, or of its text if it
/// sees images too.
std::pair<std::string, int64_t> text_model_of(const std::string& folder) {
  const auto model = inspect_pretrained(folder);
  TORCH_CHECK(
      !model.layers.empty(),
      format_text("expected a model with layers in \"{}\"", folder));
  const auto part = model.layers.front().part;
  int64_t count = 0;
  for (const auto& found : model.layers) {
    if (found.part == part && !found.is_cross) {
      count += static_cast<int64_t>(found.numbers.size());
    }
  }
  return {model.layers.front().model_type, count};
}

Runner runner_of(const std::string& type, const std::string& folder) {
  const auto found = runners().find(type);
  TORCH_CHECK(
      found != runners().end(),
      format_text(
          "expected a model_type of {} in \"{}\", which can be run, but got "
          "\"{}\": give what enters the attention of one layer by --input",
          list_text(runnable_model_types(), ", "),
          folder,
          type));
  return found->second;
}

/// The attention of a layer in float32, and what it gives.
class AttentionOfLayers {
 public:
  AttentionOfLayers(std::string folder, std::vector<int64_t> wanted)
      : folder_(std::move(folder)), wanted_(std::move(wanted)) {}

  torch::Tensor attend(int64_t layer, const torch::Tensor& x) {
    auto attention = attention_from_pretrained(folder_, layer);
    if (std::count(wanted_.begin(), wanted_.end(), layer) == 0) {
      return attention->forward(x);
    }
    auto [output, weights] = attention->forward_with_weights(x);
    found_.push_back({layer, weights.squeeze(0), attention->options.causal()});
    return output;
  }

  std::vector<LayerWeights> take() {
    return std::move(found_);
  }

 private:
  std::string folder_;
  std::vector<int64_t> wanted_;
  std::vector<LayerWeights> found_;
};

} // namespace

std::vector<std::string> runnable_model_types() {
  std::vector<std::string> types;
  for (const auto& [type, runner] : runners()) {
    types.push_back(type);
  }
  return types;
}

std::vector<LayerWeights> weights_of_model(
    const std::string& folder,
    const std::vector<int64_t>& ids,
    std::vector<int64_t> layers) {
  const c10::NoGradGuard no_gradients;
  TORCH_CHECK(!ids.empty(), "expected at least one token");
  const auto [type, count] = text_model_of(folder);
  const auto runner = runner_of(type, folder);
  if (layers.empty()) {
    layers.resize(static_cast<size_t>(count));
    std::iota(layers.begin(), layers.end(), 0);
  }
  for (const auto layer : layers) {
    TORCH_CHECK(
        layer >= 0 && layer < count,
        format_text(
            "expected a layer in [0, {}), which \"{}\" has, but got {}",
            count,
            folder,
            layer));
  }
  const auto places = options_from_config(folder, /*layer=*/0).context_length();
  TORCH_CHECK(
      static_cast<int64_t>(ids.size()) <= places,
      format_text(
          "expected at most {} tokens, for which \"{}\" has positions, but got "
          "{}",
          places,
          folder,
          ids.size()));
  AttentionOfLayers attention(folder, layers);
  ModelRun run{
      folder,
      type,
      ModelFields(folder),
      at::tensor(ids),
      *std::max_element(layers.begin(), layers.end()),
      [&](int64_t layer, const torch::Tensor& x) {
        return attention.attend(layer, x);
      }};
  runner(run);
  return attention.take();
}

} // namespace torch_attention::tools
