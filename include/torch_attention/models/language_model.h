#pragma once

#include <torch/nn/module.h>
#include <torch/types.h>

#include <torch_attention/models/export.h>
#include <torch_attention/models/options.h>
#include <torch_attention/models/sequence_caches.h>
#include <torch_attention/nn/kv_cache.h>
#include <torch_attention/nn/options/forward.h>

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

namespace torch_attention::models {

/// The keys and values of each layer.
using Caches = std::vector<KVCache>;

/// A model that predicts the next token: the common interface of `Gpt2` and
/// `Llama`.
///
/// Sizes: `B` sequences, `T` tokens, `C` elements of a hidden state, `H` heads,
/// `V` tokens of the vocabulary. Token ids are int64 on the model's device.
///
/// Example:
/// ```
/// auto model = language_model_from_pretrained("Qwen3-0.6B");
/// auto logits = model->forward(torch::tensor({{1, 2, 3}})); // (1, 3, V)
/// ```
class TORCH_ATTENTION_MODELS_API LanguageModel : public torch::nn::Module {
 public:
  using torch::nn::Module::Module;

  /// ids (B, T) -> logits (B, T, V) of the token after each.
  virtual torch::Tensor forward(const torch::Tensor& ids) = 0;

  /// ids (B, T) of tokens after those in `caches`, which take in the new ones;
  /// `call` says how prompts of different lengths are padded -> logits (B, V)
  /// of the token after the last. Records nothing for autograd.
  ///
  /// Throws c10::Error, and leaves all caches as they were, if ids or caches do
  /// not fit, a text becomes too long, or the model is in training and has
  /// dropout, which `transformers` would apply: call `eval()` before.
  ///
  /// Example:
  /// ```
  /// auto caches = model->make_caches(/*batch_size=*/1);
  /// auto logits = model->decode(prompt, caches); // (1, V)
  /// logits = model->decode(logits.argmax(-1, /*keepdim=*/true), caches);
  /// ```
  virtual torch::Tensor decode(
      const torch::Tensor& ids,
      Caches& caches,
      const DecodeOptions& call = {}) = 0;

  /// Computes `decode` of new tokens of some sequences of `caches`: row b of
  /// ids (B, T) belongs to the b-th of them. With `new_lengths` and
  /// `left_padded` they may have different numbers of new tokens, such as a
  /// part of a prompt with the next tokens of other texts; padding costs as
  /// much as tokens, so that calls for one number each are faster if it is
  /// long.
  ///
  /// Throws c10::Error, too, if there is no such sequence, one occurs twice, or
  /// too few blocks are free. All layers are then as they were.
  ///
  /// Example:
  /// ```
  /// auto caches = model->make_sequence_caches();
  /// const auto text = caches.admit();
  /// auto logits = model->decode(prompt, caches, {text}); // (1, V)
  /// ```
  virtual torch::Tensor decode(
      const torch::Tensor& ids,
      SequenceCaches& caches,
      const std::vector<int64_t>& sequences,
      const DecodeOptions& call = {}) = 0;

  /// ids (B, T) -> (B, T, C), the input of the head.
  virtual torch::Tensor hidden_states(const torch::Tensor& ids) = 0;

  /// ids (B, T) -> for each number in `layers` the attention weights of that
  /// layer, (B, H, T, T) from queries to keys. No later layer is computed.
  virtual std::vector<torch::Tensor> attention_weights(
      const torch::Tensor& ids,
      torch::IntArrayRef layers) = 0;

  /// Empty caches, one for each layer.
  virtual Caches make_caches(int64_t batch_size) const = 0;

  /// Empty caches of sequences that come and go.
  /// Throws c10::Error as `BlockCache` does for options that it does not take.
  virtual SequenceCaches make_sequence_caches(
      const SequenceCachesOptions& cache_options = {}) const = 0;

  /// The largest number of tokens of a sequence.
  virtual int64_t context_length() const = 0;

  /// `V`: ids are from 0 to V - 1.
  virtual int64_t vocab_size() const = 0;
};

/// The model of a folder that Hugging Face's `save_pretrained` wrote, in
/// evaluation: a `Gpt2`, or a `Llama` for Llama, Mistral, Qwen2, Qwen3 and
/// Gemma 1 to 3, of those that see images the text model.
///
/// Draws no random numbers. Throws c10::Error if it is a model of another type,
/// a file is missing, or the weights do not fit the configuration: each has to
/// be used.
TORCH_ATTENTION_MODELS_API std::shared_ptr<LanguageModel>
language_model_from_pretrained(
    const std::string& folder,
    const PretrainedModelOptions& options = {});

/// The values of `model_type` that `language_model_from_pretrained` loads,
/// sorted.
TORCH_ATTENTION_MODELS_API std::vector<std::string> language_model_types();

} // namespace torch_attention::models
