#include <models/layers.h>

#include <format_text.h>
#include <torch_attention/weights/inspect_pretrained.h>

#include <ATen/ops/aminmax.h>

#include <algorithm>

namespace torch_attention::models {

TextLayers text_layers_of(
    const std::string& folder,
    const PretrainedModelOptions& options) {
  const auto model = inspect_pretrained(folder);
  TORCH_CHECK(
      !model.layers.empty(),
      format_text("expected a model with layers in \"{}\"", folder));
  TextLayers layers;
  layers.model_type = model.layers.front().model_type;
  for (const auto& found : model.layers) {
    if (found.part == model.layers.front().part && !found.is_cross) {
      layers.total += static_cast<int64_t>(found.numbers.size());
    }
  }
  layers.count = options.num_layers().value_or(layers.total);
  TORCH_CHECK(
      layers.count >= 0 && layers.count <= layers.total,
      format_text(
          "expected num_layers from 0 to {}, which \"{}\" has, but got {}",
          layers.total,
          folder,
          layers.count));
  return layers;
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
    TORCH_CHECK(
        options.d_in() == hidden_size && options.d_out() == hidden_size,
        format_text(
            "{}: expected attention from {} to {}, but got from {} to {}",
            model,
            hidden_size,
            hidden_size,
            options.d_in(),
            options.d_out()));
    layers.push_back(options);
  }
  return layers;
}

torch::Dtype dtype_of(const std::vector<MultiHeadAttention>& attention) {
  return attention.empty() ? torch::kFloat
                           : attention.front()->W_query->weight.scalar_type();
}

void check_ids(
    const char* model,
    const torch::Tensor& ids,
    int64_t dim,
    int64_t vocab_size) {
  TORCH_CHECK(
      ids.dim() == dim && c10::isIntegralType(ids.scalar_type(), false),
      format_text(
          "{}: expected integer ids of {} dimensions, but got the shape ({}) of "
          "{}",
          model,
          dim,
          fmt::join(ids.sizes(), ", "),
          c10::toString(ids.scalar_type())));
  // Skipped on a GPU: reading the value would synchronise.
  if (!ids.is_cpu() || ids.numel() == 0) {
    return;
  }
  const auto [least, most] = at::aminmax(ids);
  for (const auto& id : {least, most}) {
    const auto value = id.item<int64_t>();
    TORCH_CHECK(
        value >= 0 && value < vocab_size,
        format_text(
            "{}: expected ids from 0 to {}, but got {}",
            model,
            vocab_size - 1,
            value));
  }
}

void check_new_lengths(
    const char* model,
    const torch::Tensor& ids,
    const DecodeOptions& call) {
  if (!call.new_lengths().defined() || call.new_lengths().numel() == 0) {
    return;
  }
  const auto lengths = call.new_lengths().cpu();
  TORCH_CHECK(
      lengths.min().item<int64_t>() >= 1,
      format_text(
          "{}: expected at least one new token of each text, but got {}",
          model,
          lengths.min().item<int64_t>()));
  TORCH_CHECK(
      call.left_padded() || lengths.eq(ids.size(1)).all().item<bool>(),
      format_text(
          "{}: expected texts that are padded on the left "
          "(DecodeOptions().left_padded(true)), since the logits are those of "
          "the last column",
          model));
}

void check_caches(const char* model, size_t num_caches, size_t num_layers) {
  TORCH_CHECK(
      num_caches == num_layers && num_layers > 0,
      format_text(
          "{}: expected a cache for each of {} layers, but got {}",
          model,
          num_layers,
          num_caches));
}

int64_t last_of(const char* model, torch::IntArrayRef layers, size_t count) {
  int64_t last = -1;
  for (const auto layer : layers) {
    TORCH_CHECK(
        layer >= 0 && layer < static_cast<int64_t>(count),
        format_text(
            "{}: expected a layer in [0, {}), but got {}",
            model,
            count,
            layer));
    last = std::max(last, layer);
  }
  return last;
}

} // namespace torch_attention::models
