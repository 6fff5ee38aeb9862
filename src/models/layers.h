#pragma once

#include <c10/util/Exception.h>

#include <torch/nn/modules/container/modulelist.h>
#include <torch/types.h>

#include <torch_attention/models/language_model.h>
#include <torch_attention/models/options.h>
#include <torch_attention/nn/modules/multi_head_attention.h>
#include <torch_attention/weights/pretrained.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <string>
#include <tuple>
#include <vector>

/// Steps that all models have.
namespace torch_attention::models {

/// The layers of a folder's model, of one that sees images those of the text.
struct TextLayers {
  std::string model_type;
  /// In the configuration.
  int64_t total = 0;
  /// To be loaded: `num_layers` of the options.
  int64_t count = 0;
};

/// Throws c10::Error if the model has no layers, or the options ask for more
/// than it has.
TextLayers text_layers_of(
    const std::string& folder,
    const PretrainedModelOptions& options);

/// Loads the attention of the first `count` layers of a folder.
std::vector<MultiHeadAttention> load_attention(
    const std::string& folder,
    int64_t count,
    const PretrainedOptions& options);

/// Makes the attention of each layer with drawn weights.
std::vector<MultiHeadAttention> make_attention(
    const std::vector<MultiHeadAttentionOptions>& layers);

/// Returns the options of each layer. Throws c10::Error that names `model`
/// unless all are from and to `hidden_size`.
std::vector<MultiHeadAttentionOptions> options_of(
    const char* model,
    const std::vector<MultiHeadAttention>& attention,
    int64_t hidden_size);

/// Returns the dtype of the weights; float without layers.
torch::Dtype dtype_of(const std::vector<MultiHeadAttention>& attention);

/// Throws c10::Error that names `model` unless the ids have `dim` dimensions
/// and, where they are on the CPU, are in [0, vocab_size).
void check_ids(
    const char* model,
    const torch::Tensor& ids,
    int64_t dim,
    int64_t vocab_size);

/// Returns the options of a cache of blocks for the attention of a layer.
BlockCacheOptions block_options_of(
    const MultiHeadAttention& attention,
    const SequenceCachesOptions& options);

/// Returns the lengths (B) of the sequences in the cache of each layer.
template <typename LayerCaches>
std::vector<torch::Tensor> lengths_of(const LayerCaches& caches) {
  std::vector<torch::Tensor> lengths;
  for (const auto& cache : caches) {
    lengths.push_back(cache.lengths());
  }
  return lengths;
}

/// Throws c10::Error that names `name` unless `model` can decode ids (B, T): it
/// drops nothing, the ids are tokens, each layer has a cache, all of the same
/// lengths, and those of the call end at the last column, whose logits are
/// wanted.
void check_step(
    const char* name,
    const LanguageModel& model,
    size_t num_layers,
    const torch::Tensor& ids,
    const std::vector<torch::Tensor>& cache_lengths,
    const DecodeOptions& call);

/// Returns the last of some layers, -1 if there are none. Throws c10::Error
/// that names `model` for one that it does not have.
int64_t last_of(const char* model, torch::IntArrayRef layers, size_t count);

/// Runs x (B, T, C) through blocks of the type `Block`, up to the last of
/// `layers`, and returns the attention weights of each of these. `call` are
/// further arguments of the blocks.
template <typename Block, typename... Call>
std::vector<torch::Tensor> weights_of_layers(
    const char* model,
    const torch::nn::ModuleList& blocks,
    torch::Tensor x,
    torch::IntArrayRef layers,
    const Call&... call) {
  const auto last = last_of(model, layers, blocks->size());
  std::vector<torch::Tensor> weights(layers.size());
  for (int64_t i = 0; i <= last; ++i) {
    auto& block = *blocks->ptr(static_cast<size_t>(i))->template as<Block>();
    const auto wanted = std::count(layers.begin(), layers.end(), i) > 0;
    if (!wanted) {
      x = block.forward(x, call...);
      continue;
    }
    torch::Tensor found;
    std::tie(x, found) = block.forward_with_weights(x, call...);
    for (size_t k = 0; k < layers.size(); ++k) {
      if (layers[k] == i) {
        weights[k] = found;
      }
    }
  }
  return weights;
}

} // namespace torch_attention::models
