#include "generation.h"

#include <ATen/CPUGeneratorImpl.h>
#include <c10/util/Exception.h>
#include <torch/utils.h>

#include <algorithm>
#include <chrono>
#include <cmath>

namespace gpt {

using torch::Tensor;

namespace {

using Clock = std::chrono::steady_clock;
using Texts = std::vector<std::vector<int64_t>>;

double seconds_since(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

void check(
    const LanguageModel& model,
    const Texts& prompts,
    const GenerationOptions& options) {
  TORCH_CHECK(!prompts.empty(), "Expected a prompt");
  for (const auto& prompt : prompts) {
    TORCH_CHECK(!prompt.empty(), "Expected at least one token of each prompt");
    for (const auto token : prompt) {
      TORCH_CHECK(
          token >= 0 && token < model.vocab_size(),
          "Expected tokens from 0 to ",
          model.vocab_size() - 1,
          " but got ",
          token);
    }
    const auto length =
        static_cast<int64_t>(prompt.size()) + options.max_new_tokens;
    TORCH_CHECK(
        length <= model.context_length(),
        "The model takes ",
        model.context_length(),
        " tokens, but prompt and text have ",
        length);
  }
  TORCH_CHECK(
      options.max_new_tokens > 0,
      "Expected max_new_tokens > 0 but got ",
      options.max_new_tokens);
  TORCH_CHECK(
      options.temperature >= 0 && std::isfinite(options.temperature),
      "Expected temperature >= 0 but got ",
      options.temperature);
  TORCH_CHECK(
      options.top_k >= 0, "Expected top_k >= 0 but got ", options.top_k);
  TORCH_CHECK(
      options.top_p > 0 && options.top_p <= 1,
      "Expected 0 < top_p <= 1 but got ",
      options.top_p);
  TORCH_CHECK(
      options.repetition_penalty > 0,
      "Expected repetition_penalty > 0 but got ",
      options.repetition_penalty);
}

Tensor penalized(const Tensor& logits, const Texts& texts, double penalty) {
  auto result = logits.clone();
  for (size_t b = 0; b < texts.size(); ++b) {
    auto row = result[static_cast<int64_t>(b)];
    const auto seen = torch::tensor(texts[b]);
    const auto scores = row.index_select(0, seen);
    row.index_copy_(
        0, seen, torch::where(scores < 0, scores * penalty, scores / penalty));
  }
  return result;
}

/// Keeps the k largest logits, and those that equal the last of them.
Tensor keep_top_k(const Tensor& logits, int64_t k) {
  const auto least =
      std::get<0>(logits.topk(std::min(k, logits.size(-1)))).slice(-1, -1);
  return logits.masked_fill(logits < least, -INFINITY);
}

/// Keeps the largest logits, down to the one that completes probability p.
Tensor keep_top_p(const Tensor& logits, double p) {
  auto [sorted, order] = logits.sort(-1, /*descending=*/false);
  auto hidden = sorted.softmax(-1).cumsum(-1) <= 1 - p;
  hidden.slice(-1, -1).zero_(); // the likeliest stays
  return logits.masked_fill(hidden.scatter(-1, order, hidden), -INFINITY);
}

/// Returns (B) tokens.
Tensor choose(
    const Tensor& logits,
    const Texts& texts,
    const GenerationOptions& options,
    const at::Generator& generator) {
  if (options.temperature > 0) {
    return next_probabilities(logits, texts, options)
        .multinomial(1, /*replacement=*/false, generator)
        .squeeze(1);
  }
  const auto scores = logits.to(torch::kCPU, torch::kFloat);
  return (options.repetition_penalty == 1
              ? scores
              : penalized(scores, texts, options.repetition_penalty))
      .argmax(-1);
}

/// Returns the prompts (B, T), padded on the left with zeros.
Tensor left_padded(const Texts& prompts, int64_t length) {
  auto ids = torch::zeros(
      {static_cast<int64_t>(prompts.size()), length}, torch::kLong);
  for (size_t b = 0; b < prompts.size(); ++b) {
    const auto size = static_cast<int64_t>(prompts[b].size());
    ids[static_cast<int64_t>(b)].slice(0, length - size) =
        torch::tensor(prompts[b]);
  }
  return ids;
}

} // namespace

Tensor next_probabilities(
    const Tensor& logits,
    const Texts& texts,
    const GenerationOptions& options) {
  auto scores = logits.to(torch::kCPU, torch::kFloat);
  if (options.repetition_penalty != 1) {
    scores = penalized(scores, texts, options.repetition_penalty);
  }
  scores = scores / options.temperature;
  if (options.top_k > 0) {
    scores = keep_top_k(scores, options.top_k);
  }
  if (options.top_p < 1) {
    scores = keep_top_p(scores, options.top_p);
  }
  return scores.softmax(-1);
}

Generation generate(
    LanguageModel& model,
    const Texts& prompts,
    const GenerationOptions& options) {
  check(model, prompts, options);
  const torch::NoGradGuard no_gradients;
  const auto batch_size = prompts.size();
  std::vector<int64_t> lengths;
  Generation result;
  for (const auto& prompt : prompts) {
    lengths.push_back(static_cast<int64_t>(prompt.size()));
    result.num_prompt_tokens += lengths.back();
  }
  result.tokens.resize(batch_size);
  auto texts = prompts; // with what is generated
  std::vector<bool> ended(batch_size, false);
  const auto generator =
      torch::make_generator<at::CPUGeneratorImpl>(options.seed);
  auto caches = model.make_caches(static_cast<int64_t>(batch_size));

  auto start = Clock::now();
  auto logits = model.decode(
      left_padded(prompts, *std::max_element(lengths.begin(), lengths.end())),
      caches,
      torch_attention::DecodeOptions(torch::tensor(lengths)).left_padded(true));
  for (int64_t step = 0;; ++step) {
    const auto next = choose(logits, texts, options, generator);
    if (step == 0) {
      result.prompt_seconds = seconds_since(start);
      start = Clock::now();
    }
    GenerationOptions::NewTokens tokens(batch_size);
    for (size_t b = 0; b < batch_size; ++b) {
      if (ended[b]) {
        continue;
      }
      const auto token = next[static_cast<int64_t>(b)].item<int64_t>();
      tokens[b] = token;
      texts[b].push_back(token);
      result.tokens[b].push_back(token);
      result.num_text_tokens += step > 0;
      ended[b] =
          std::count(
              options.stop_tokens.begin(), options.stop_tokens.end(), token) >
          0;
    }
    result.text_seconds = seconds_since(start);
    if (options.on_tokens) {
      options.on_tokens(tokens);
    }
    if (step + 1 == options.max_new_tokens ||
        std::find(ended.begin(), ended.end(), false) == ended.end()) {
      return result;
    }
    logits = model.decode(next.unsqueeze(1), caches);
  }
}

} // namespace gpt
