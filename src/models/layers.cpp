#include <models/layers.h>

#include <check.h>
#include <format_text.h>
#include <torch_attention/weights/inspect_pretrained.h>

#include <torch/nn/modules/dropout.h>

#include <ATen/ops/aminmax.h>

#include <algorithm>

namespace torch_attention::models {

TextLayers text_layers_of(
    const std::string& folder,
    const PretrainedModelOptions& options) {
  const auto model = inspect_pretrained(folder);
  TORCH_ATTENTION_CHECK(
      !model.layers.empty(), "expected a model with layers in \"{}\"", folder);
  TORCH_ATTENTION_CHECK(
      options.dtype() == torch::kFloat || options.dtype() == torch::kDouble ||
          options.dtype() == torch::kBFloat16 ||
          options.dtype() == torch::kHalf,
      "expected the dtype Float, Double, BFloat16 or Half for \"{}\", but "
      "got {}",
      folder,
      c10::toString(options.dtype()));
  TextLayers layers;
  layers.model_type = model.layers.front().model_type;
  for (const auto& found : model.layers) {
    if (found.part == model.layers.front().part && !found.is_cross) {
      layers.total += static_cast<int64_t>(found.numbers.size());
    }
  }
  layers.count = options.num_layers().value_or(layers.total);
  TORCH_ATTENTION_CHECK(
      layers.count >= 0 && layers.count <= layers.total,
      "expected num_layers from 0 to {}, which \"{}\" has, but got {}",
      layers.total,
      folder,
      layers.count);
  return layers;
}

std::vector<MultiHeadAttention> load_attention(
    const std::string& folder,
    int64_t count,
    const PretrainedOptions& options) {
  std::vector<MultiHeadAttention> attention;
  for (int64_t i = 0; i < count; ++i) {
    attention.push_back(attention_from_pretrained(folder, i, options));
  }
  return attention;
}

std::vector<MultiHeadAttention> make_attention(
    const std::vector<MultiHeadAttentionOptions>& layers) {
  std::vector<MultiHeadAttention> attention;
  for (const auto& options : layers) {
    attention.emplace_back(options);
  }
  return attention;
}

std::vector<MultiHeadAttentionOptions> options_of(
    const char* model,
    const std::vector<MultiHeadAttention>& attention,
    int64_t hidden_size) {
  std::vector<MultiHeadAttentionOptions> layers;
  for (const auto& layer : attention) {
    const auto& options = layer->options;
    TORCH_ATTENTION_CHECK(
        options.d_in() == hidden_size && options.d_out() == hidden_size,
        "{}: expected attention from {} to {}, but got from {} to {}",
        model,
        hidden_size,
        hidden_size,
        options.d_in(),
        options.d_out());
    layers.push_back(options);
  }
  return layers;
}

torch::Dtype dtype_of(const std::vector<MultiHeadAttention>& attention) {
  return attention.empty() ? torch::kFloat
                           : attention.front()->W_query->weight.scalar_type();
}

BlockCacheOptions block_options_of(
    const MultiHeadAttention& attention,
    const SequenceCachesOptions& options) {
  auto blocks = attention->block_cache_options();
  blocks.block_size(options.block_size()).max_blocks(options.max_blocks());
  if (options.dtype()) {
    blocks.dtype(*options.dtype());
  }
  return blocks;
}

namespace {

void check_new_lengths(
    const char* model,
    const torch::Tensor& ids,
    const DecodeOptions& call) {
  if (!call.new_lengths().defined() || call.new_lengths().numel() == 0) {
    return;
  }
  const auto lengths = call.new_lengths().cpu();
  TORCH_ATTENTION_CHECK(
      lengths.min().item<int64_t>() >= 1,
      "{}: expected at least one new token of each text, but got {}",
      model,
      lengths.min().item<int64_t>());
  TORCH_ATTENTION_CHECK(
      call.left_padded() || lengths.eq(ids.size(1)).all().item<bool>(),
      "{}: expected texts that are padded on the left "
      "(DecodeOptions().left_padded(true)), since the logits are those of "
      "the last column",
      model);
}

std::string numbers_of(const torch::Tensor& counts) {
  const auto* first = counts.const_data_ptr<int64_t>();
  return format_text("{}", fmt::join(first, first + counts.numel(), ", "));
}

void check_caches(
    const char* model,
    const std::vector<torch::Tensor>& lengths,
    size_t num_layers) {
  TORCH_ATTENTION_CHECK(
      lengths.size() == num_layers && num_layers > 0,
      "{}: expected a cache for each of {} layers, but got {}",
      model,
      num_layers,
      lengths.size());
  for (const auto& of_layer : lengths) {
    TORCH_ATTENTION_CHECK(
        of_layer.equal(lengths.front()),
        "{}: expected caches of the same texts, but the first has the "
        "lengths {}, and another {}",
        model,
        numbers_of(lengths.front()),
        numbers_of(of_layer));
  }
}

/// Attention refuses its own dropout, but not that of other parts.
void check_drops_nothing(const char* name, const LanguageModel& model) {
  if (!model.is_training()) {
    return;
  }
  for (const auto& module : model.modules(/*include_self=*/false)) {
    const auto* dropout = module->as<torch::nn::Dropout>();
    TORCH_ATTENTION_CHECK(
        dropout == nullptr || !dropout->is_training() ||
            dropout->options.p() == 0,
        "{}: expected evaluation for decode, which has no dropout, but got "
        "training with dropout = {}; call eval()",
        name,
        dropout == nullptr ? 0 : dropout->options.p());
  }
}

} // namespace

void check_ids(
    const char* model,
    const torch::Tensor& ids,
    int64_t dim,
    int64_t vocab_size) {
  TORCH_ATTENTION_CHECK(
      ids.dim() == dim && c10::isIntegralType(ids.scalar_type(), false),
      "{}: expected integer ids of {} dimensions, but got the shape ({}) of "
      "{}",
      model,
      dim,
      fmt::join(ids.sizes(), ", "),
      c10::toString(ids.scalar_type()));
  // Skipped on a GPU: reading the value would synchronise.
  if (!ids.is_cpu() || ids.numel() == 0) {
    return;
  }
  const auto [least, most] = at::aminmax(ids);
  for (const auto& id : {least, most}) {
    const auto value = id.item<int64_t>();
    TORCH_ATTENTION_CHECK(
        value >= 0 && value < vocab_size,
        "{}: expected ids from 0 to {}, but got {}",
        model,
        vocab_size - 1,
        value);
  }
}

void check_step(
    const char* name,
    const LanguageModel& model,
    size_t num_layers,
    const torch::Tensor& ids,
    const std::vector<torch::Tensor>& cache_lengths,
    const DecodeOptions& call) {
  check_ids(name, ids, /*dim=*/2, model.vocab_size());
  TORCH_ATTENTION_CHECK(
      ids.size(1) > 0,
      "{}: expected at least one new token, but got none",
      name);
  check_drops_nothing(name, model);
  check_caches(name, cache_lengths, num_layers);
  check_new_lengths(name, ids, call);
}

int64_t last_of(const char* model, torch::IntArrayRef layers, size_t count) {
  int64_t last = -1;
  for (const auto layer : layers) {
    TORCH_ATTENTION_CHECK(
        layer >= 0 && layer < static_cast<int64_t>(count),
        "{}: expected a layer in [0, {}), but got {}",
        model,
        count,
        layer);
    last = std::max(last, layer);
  }
  return last;
}

} // namespace torch_attention::models
