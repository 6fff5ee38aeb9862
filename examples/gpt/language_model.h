#pragma once

#include <torch/nn/module.h>
#include <torch/types.h>

#include <torch_attention/nn/kv_cache.h>
#include <torch_attention/nn/options/forward.h>

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

namespace gpt {

/// The keys and values of each layer.
using Caches = std::vector<torch_attention::KVCache>;

/// A model that predicts the next token: what generation and training need of
/// GPT-2 and of Llama.
///
/// Sizes: `B` sequences, `T` tokens, `V` words of the vocabulary.
class LanguageModel : public torch::nn::Module {
 public:
  using torch::nn::Module::Module;

  /// ids (B, T), int64 -> logits (B, T, V) of the token after each.
  virtual torch::Tensor forward(const torch::Tensor& ids) = 0;

  /// ids (B, T) of tokens after those in `caches`, which take in the new ones,
  /// padded on the left where `call` says so -> logits (B, V) of the token
  /// after the last. Records nothing for autograd.
  virtual torch::Tensor decode(
      const torch::Tensor& ids,
      Caches& caches,
      const torch_attention::DecodeOptions& call = {}) = 0;

  /// Empty caches, one for each layer.
  virtual Caches make_caches(int64_t batch_size) const = 0;

  /// The largest number of tokens.
  virtual int64_t context_length() const = 0;

  /// V.
  virtual int64_t vocab_size() const = 0;
};

/// Returns the model of a folder that `save_pretrained` wrote, in evaluation:
/// GPT-2, or one that `llama.h` knows.
/// Throws c10::Error if it is another, or its files do not fit.
std::shared_ptr<LanguageModel> load_model(
    const std::string& folder,
    torch::Dtype dtype = torch::kFloat);

} // namespace gpt
