#pragma once

#include <ATen/core/Generator.h>
#include <torch/arg.h>
#include <torch/types.h>

#include <torch_attention/models/export.h>
#include <torch_attention/models/language_model.h>

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

namespace torch_attention::models {

/// Options for `generate`: how the next token is chosen, and when a text ends.
///
/// Example:
/// ```
/// generate(*model, prompts, GenerateOptions().temperature(0.8).top_k(40));
/// ```
struct TORCH_ATTENTION_MODELS_API GenerateOptions {
  /// A token for each sequence, none for those that have ended.
  using NewTokens = std::vector<std::optional<int64_t>>;
  using OnTokens = std::function<void(const NewTokens& tokens)>;

  /// Default: 64
  TORCH_ARG(int64_t, max_new_tokens) = 64;

  /// logits are divided by it; 0 takes the likeliest token. Default: 0
  TORCH_ARG(double, temperature) = 0;

  /// draw from so many of the likeliest tokens; 0 for all. Default: 0
  TORCH_ARG(int64_t, top_k) = 0;

  /// draw from the likeliest tokens that have this probability together.
  /// Default: 1
  TORCH_ARG(double, top_p) = 1;

  /// logits of tokens that the text has are divided by it, negative ones
  /// multiplied (Keskar et al. 2019, "CTRL"). Default: 1
  TORCH_ARG(double, repetition_penalty) = 1;

  /// seed of a generator of its own. Default: 0
  TORCH_ARG(uint64_t, seed) = 0;

  /// a sequence ends with one of these. Default: none
  TORCH_ARG(std::vector<int64_t>, stop_tokens) = {};

  /// function that is called after each step. Default: none
  TORCH_ARG(OnTokens, on_tokens) = nullptr;
};

/// The result of `generate`.
struct TORCH_ATTENTION_MODELS_API Generation {
  /// The new tokens of each sequence, with the one that ended it.
  std::vector<std::vector<int64_t>> tokens;
  int64_t num_prompt_tokens = 0;
  /// Tokens after the first of each sequence, which the prompt gives.
  int64_t num_text_tokens = 0;
  double prompt_seconds = 0;
  double text_seconds = 0;
};

/// Continues all prompts at once; they may differ in length.
///
/// Throws c10::Error if a prompt is empty, has a token that the model does not
/// have, or becomes longer than the model takes, for options out of range, and
/// for a model with dropout in training, as `LanguageModel::decode`.
///
/// Example:
/// ```
/// auto model = language_model_from_pretrained("Qwen3-0.6B");
/// auto text = generate(*model, {{1, 2, 3}}).tokens[0];
/// ```
TORCH_ATTENTION_MODELS_API Generation generate(
    LanguageModel& model,
    const std::vector<std::vector<int64_t>>& prompts,
    const GenerateOptions& options = {});

/// The probabilities (B, V), float32 on the CPU, by which `generate` draws the
/// next token: logits (B, V) after the penalty, temperature, top-k and top-p,
/// in the order of `transformers`. `texts` has the tokens of each sequence so
/// far.
TORCH_ATTENTION_MODELS_API torch::Tensor next_probabilities(
    const torch::Tensor& logits,
    const std::vector<std::vector<int64_t>>& texts,
    const GenerateOptions& options);

/// Chooses next tokens as `generate` does, with a generator of its own: for
/// texts that are decoded together, but begin at different times. Copies share
/// the generator.
///
/// Example:
/// ```
/// Sampler sampler(GenerateOptions().temperature(0.8).seed(1));
/// auto logits = model->decode(prompt, caches, {text});
/// auto next = sampler.next(logits, {tokens}); // (1)
/// ```
class TORCH_ATTENTION_MODELS_API Sampler {
 public:
  /// Reads temperature, top-k, top-p, penalty and seed. Throws c10::Error if
  /// one is out of range.
  explicit Sampler(const GenerateOptions& options_);

  /// logits (B, V) and the tokens of each text so far -> the next token of
  /// each, int64 (B) on the CPU. A call with a temperature draws B numbers.
  torch::Tensor next(
      const torch::Tensor& logits,
      const std::vector<std::vector<int64_t>>& texts);

  /// The options with which this object was constructed.
  const GenerateOptions options;

 private:
  at::Generator generator_;
};

/// The tokens that end a text of a folder's model, as `generate` of
/// `transformers` has them: `eos_token_id` of `generation_config.json`, or
/// without that file of `config.json`. None if that is absent, whatever the
/// default of the model's class is, or null.
///
/// Throws c10::Error for a field that is neither a token nor a list of them.
TORCH_ATTENTION_MODELS_API std::vector<int64_t> stop_tokens_from_pretrained(
    const std::string& folder);

} // namespace torch_attention::models
