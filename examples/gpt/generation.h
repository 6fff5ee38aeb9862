#pragma once

#include "language_model.h"

#include <cstdint>
#include <functional>
#include <optional>
#include <vector>

namespace gpt {

/// How the next token is chosen, and when a text ends.
struct GenerationOptions {
  int64_t max_new_tokens = 64;
  /// Logits are divided by it; 0 takes the likeliest token.
  double temperature = 0;
  /// Only the so many likeliest tokens; 0 for all.
  int64_t top_k = 0;
  /// Only the likeliest tokens that have this probability together.
  double top_p = 1;
  /// Logits of tokens that the text has are divided by it, negative ones
  /// multiplied (Keskar et al. 2019, "CTRL").
  double repetition_penalty = 1;
  uint64_t seed = 0;
  /// A sequence ends with one of these.
  std::vector<int64_t> stop_tokens;

  /// A token for each sequence, none for those that have ended.
  using NewTokens = std::vector<std::optional<int64_t>>;
  /// Is called after each step.
  std::function<void(const NewTokens&)> on_tokens;
};

/// The result of `generate`.
struct Generation {
  /// The new tokens of each sequence, with the one that ended it.
  std::vector<std::vector<int64_t>> tokens;
  int64_t num_prompt_tokens = 0;
  /// Tokens after the first of each sequence, which the prompt gives.
  int64_t num_text_tokens = 0;
  double prompt_seconds = 0;
  double text_seconds = 0;
};

/// Returns the probabilities (B, V) by which `generate` draws the next token:
/// logits (B, V) after the penalty, temperature, top-k and top-p, in the order
/// of `transformers`. `texts` has the tokens of each sequence so far.
torch::Tensor next_probabilities(
    const torch::Tensor& logits,
    const std::vector<std::vector<int64_t>>& texts,
    const GenerationOptions& options);

/// Continues all prompts at once; they may differ in length.
/// Throws c10::Error if a prompt is empty, has a token that the model does not
/// have, or becomes longer than the model takes, and for options out of range.
///
/// Example:
/// ```
/// GenerationOptions options;
/// options.temperature = 0.8;
/// auto text = generate(*model, {{1, 2, 3}}, options).tokens[0];
/// ```
Generation generate(
    LanguageModel& model,
    const std::vector<std::vector<int64_t>>& prompts,
    const GenerationOptions& options);

} // namespace gpt
