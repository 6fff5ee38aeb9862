#include <torch_attention/models/generate.h>

#include <check.h>
#include <models/json_fields.h>
#include <models/model_fields.h>

#include <c10/core/GradMode.h>
#include <c10/util/Exception.h>

#include <ATen/ops/tensor.h>
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <chrono>

namespace torch_attention::models {

using torch::Tensor;

namespace {

using Clock = std::chrono::steady_clock;
using Texts = std::vector<std::vector<int64_t>>;

double seconds_since(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

void check_prompts(
    const LanguageModel& model,
    const Texts& prompts,
    const GenerateOptions& options) {
  TORCH_CHECK(!prompts.empty(), "expected a prompt");
  for (const auto& prompt : prompts) {
    TORCH_CHECK(!prompt.empty(), "expected at least one token of each prompt");
    for (const auto token : prompt) {
      TORCH_ATTENTION_CHECK(
          token >= 0 && token < model.vocab_size(),
          "expected tokens from 0 to {}, but got {}",
          model.vocab_size() - 1,
          token);
    }
    const auto length = static_cast<int64_t>(prompt.size());
    // Not added: the sum may be no int64_t.
    TORCH_ATTENTION_CHECK(
        options.max_new_tokens() <= model.context_length() - length,
        "the model takes {} tokens, but the prompt has {}, and "
        "max_new_tokens is {}",
        model.context_length(),
        length,
        options.max_new_tokens());
  }
}

/// Returns the prompts (B, T), padded on the left with zeros.
Tensor left_padded(const Texts& prompts, int64_t length) {
  auto ids =
      at::zeros({static_cast<int64_t>(prompts.size()), length}, torch::kLong);
  for (size_t b = 0; b < prompts.size(); ++b) {
    const auto size = static_cast<int64_t>(prompts[b].size());
    ids[static_cast<int64_t>(b)].slice(0, length - size) =
        at::tensor(prompts[b]);
  }
  return ids;
}

} // namespace

Generation generate(
    LanguageModel& model,
    const Texts& prompts,
    const GenerateOptions& options) {
  TORCH_ATTENTION_CHECK(
      options.max_new_tokens() > 0,
      "expected max_new_tokens > 0, but got {}",
      options.max_new_tokens());
  Sampler sampler(options);
  check_prompts(model, prompts, options);
  const c10::NoGradGuard no_gradients;
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
  auto caches = model.make_caches(static_cast<int64_t>(batch_size));
  TORCH_CHECK(!caches.empty(), "expected a model with layers, but got none");
  const auto device = caches.front().options().device();

  auto start = Clock::now();
  auto logits = model.decode(
      left_padded(prompts, *std::max_element(lengths.begin(), lengths.end()))
          .to(device),
      caches,
      DecodeOptions(at::tensor(lengths)).left_padded(true));
  for (int64_t step = 0;; ++step) {
    const auto next = sampler.next(logits, texts);
    if (step == 0) {
      result.prompt_seconds = seconds_since(start);
      start = Clock::now();
    }
    GenerateOptions::NewTokens tokens(batch_size);
    for (size_t b = 0; b < batch_size; ++b) {
      if (ended[b]) {
        continue;
      }
      const auto token = next[static_cast<int64_t>(b)].item<int64_t>();
      tokens[b] = token;
      texts[b].push_back(token);
      result.tokens[b].push_back(token);
      result.num_text_tokens += step > 0;
      ended[b] = std::count(
                     options.stop_tokens().begin(),
                     options.stop_tokens().end(),
                     token) > 0;
    }
    result.text_seconds = seconds_since(start);
    if (options.on_tokens()) {
      options.on_tokens()(tokens);
    }
    if (step + 1 == options.max_new_tokens() ||
        std::find(ended.begin(), ended.end(), false) == ended.end()) {
      return result;
    }
    logits = model.decode(next.unsqueeze(1).to(device), caches);
  }
}

std::vector<int64_t> stop_tokens_from_pretrained(const std::string& folder) {
  const char* const name = "eos_token_id";
  const std::string generation = "generation_config.json";
  using Tokens = std::vector<int64_t>;
  if (is_there(folder + "/" + generation)) {
    return ModelFields(folder, generation).integers(name).value_or(Tokens());
  }
  // The class's own token counts for no text: transformers reads the file
  // alone.
  return ModelFields(folder).integers(name).value_or(Tokens());
}

} // namespace torch_attention::models
