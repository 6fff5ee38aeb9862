#include <torch_attention/models/generate.h>

#include <check.h>

#include <ATen/CPUGeneratorImpl.h>
#include <c10/util/Exception.h>

#include <ATen/ops/tensor.h>
#include <ATen/ops/where.h>

#include <algorithm>
#include <cmath>
#include <tuple>

namespace torch_attention::models {

using torch::Tensor;

namespace {

using Texts = std::vector<std::vector<int64_t>>;

void check_options(const GenerateOptions& options) {
  const auto check = [](bool fits, const char* expected, auto value) {
    TORCH_ATTENTION_CHECK(fits, "expected {}, but got {}", expected, value);
  };
  check(
      options.temperature() >= 0 && std::isfinite(options.temperature()),
      "temperature >= 0",
      options.temperature());
  check(options.top_k() >= 0, "top_k >= 0", options.top_k());
  check(
      options.top_p() > 0 && options.top_p() <= 1,
      "0 < top_p <= 1",
      options.top_p());
  check(
      options.repetition_penalty() > 0 &&
          std::isfinite(options.repetition_penalty()),
      "repetition_penalty > 0",
      options.repetition_penalty());
}

Tensor penalized(const Tensor& logits, const Texts& texts, double penalty) {
  auto result = logits.clone();
  for (size_t b = 0; b < texts.size(); ++b) {
    auto row = result[static_cast<int64_t>(b)];
    const auto seen = at::tensor(texts[b]);
    const auto scores = row.index_select(0, seen);
    row.index_copy_(
        0, seen, at::where(scores < 0, scores * penalty, scores / penalty));
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

} // namespace

Tensor next_probabilities(
    const Tensor& logits,
    const Texts& texts,
    const GenerateOptions& options) {
  check_options(options);
  TORCH_CHECK(
      options.temperature() > 0,
      "expected temperature > 0 for probabilities, but got 0, with which the "
      "likeliest token is taken");
  auto scores = logits.to(torch::kCPU, torch::kFloat);
  if (options.repetition_penalty() != 1) {
    scores = penalized(scores, texts, options.repetition_penalty());
  }
  scores = scores / options.temperature();
  if (options.top_k() > 0) {
    scores = keep_top_k(scores, options.top_k());
  }
  if (options.top_p() < 1) {
    scores = keep_top_p(scores, options.top_p());
  }
  return scores.softmax(-1);
}

Sampler::Sampler(const GenerateOptions& options_)
    : options(options_),
      generator_(at::make_generator<at::CPUGeneratorImpl>(options_.seed())) {
  check_options(options);
}

Tensor Sampler::next(const Tensor& logits, const Texts& texts) {
  if (options.temperature() > 0) {
    return next_probabilities(logits, texts, options)
        .multinomial(1, /*replacement=*/false, generator_)
        .squeeze(1);
  }
  const auto scores = logits.to(torch::kCPU, torch::kFloat);
  return (options.repetition_penalty() == 1
              ? scores
              : penalized(scores, texts, options.repetition_penalty()))
      .argmax(-1);
}

} // namespace torch_attention::models
