#include <torch_attention/models/sentence_encoder.h>

#include <check.h>
#include <models/layers.h>

#include <c10/core/GradMode.h>
#include <c10/util/Exception.h>

#include <ATen/ops/arange.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/segment_reduce.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <numeric>
#include <utility>

namespace torch_attention::models {

using torch::Tensor;

namespace {

/// Returns the sum of each sequence's rows, (B, C).
Tensor sums_of(const Tensor& rows, const Tensor& lengths) {
  return at::segment_reduce(rows, "sum", lengths);
}

Tensor weighted_mean(
    const Tensor& tokens,
    const Tensor& begins,
    const Tensor& lengths) {
  const auto positions = at::arange(tokens.size(0), lengths.options()) -
      begins.repeat_interleave(lengths);
  const auto weights = (positions + 1).to(tokens.scalar_type()).unsqueeze(-1);
  return sums_of(tokens * weights, lengths) / sums_of(weights, lengths);
}

Tensor pool_by(
    Pooling pooling,
    const Tensor& tokens,
    const Tensor& cu_seqlens) {
  const auto begins = cu_seqlens.slice(0, 0, -1);
  const auto lengths = cu_seqlens.diff();
  switch (pooling) {
    case Pooling::kCls:
      return tokens.index_select(0, begins);
    case Pooling::kMax:
      return at::segment_reduce(tokens, "max", lengths);
    case Pooling::kMean:
      return at::segment_reduce(tokens, "mean", lengths);
    case Pooling::kMeanSqrt:
      return sums_of(tokens, lengths) /
          lengths.to(tokens.scalar_type()).sqrt().unsqueeze(-1);
    case Pooling::kWeightedMean:
      return weighted_mean(tokens, begins, lengths);
    case Pooling::kLastToken:
      return tokens.index_select(0, cu_seqlens.slice(0, 1) - 1);
  }
  C10_THROW_ERROR(Error, "pool: expected a Pooling");
}

using Ids = std::vector<int64_t>;

/// Returns the numbers of texts, the longest first: neighbours have similar
/// lengths, and if memory is short, the first batch fails.
std::vector<int64_t> order_by_length(const std::vector<Ids>& texts) {
  std::vector<int64_t> order(texts.size());
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(), [&](int64_t a, int64_t b) {
    return texts[static_cast<size_t>(a)].size() >
        texts[static_cast<size_t>(b)].size();
  });
  return order;
}

} // namespace

Tensor pool(
    const Tensor& tokens,
    const Tensor& cu_seqlens,
    const std::vector<Pooling>& pooling) {
  TORCH_CHECK(!pooling.empty(), "pool: expected a pooling, but got none");
  TORCH_CHECK(
      cu_seqlens.numel() > 0 && cu_seqlens.diff().gt(0).all().item<bool>(),
      "pool: expected cu_seqlens of sequences with tokens");
  std::vector<Tensor> parts;
  for (const auto kind : pooling) {
    parts.push_back(pool_by(kind, tokens, cu_seqlens));
  }
  return at::cat(parts, -1);
}

SentenceEncoder::SentenceEncoder(
    Bert model_,
    Tokenize tokenize,
    const SentenceEncoderOptions& options_)
    : options(options_),
      model(std::move(model_)),
      tokenize_(std::move(tokenize)) {
  TORCH_CHECK(
      !options.pooling().empty(),
      "SentenceEncoder: expected a pooling, but got none");
  TORCH_ATTENTION_CHECK(
      options.max_length().value_or(1) > 0,
      "SentenceEncoder: expected max_length > 0, but got {}",
      options.max_length().value_or(1));
}

int64_t SentenceEncoder::max_length() const {
  const auto most = model->context_length();
  return std::min(options.max_length().value_or(most), most);
}

Ids SentenceEncoder::tokens(const std::string& text) const {
  auto ids = tokenize_(options.prompt() + text, max_length());
  TORCH_ATTENTION_CHECK(
      !ids.empty() && static_cast<int64_t>(ids.size()) <= max_length(),
      "SentenceEncoder: expected from 1 to {} tokens of each text, but the "
      "tokenizer gave {}",
      max_length(),
      ids.size());
  const auto vocab_size = model->options.vocab_size();
  for (const auto id : ids) {
    TORCH_ATTENTION_CHECK(
        id >= 0 && id < vocab_size,
        "SentenceEncoder: expected tokens from 0 to {}, which the model has, "
        "but the tokenizer gave {}",
        vocab_size - 1,
        id);
  }
  return ids;
}

Tensor SentenceEncoder::encode(
    const std::vector<std::string>& texts,
    const EncodeOptions& call) {
  const c10::NoGradGuard no_gradients;
  std::vector<Ids> ids;
  ids.reserve(texts.size());
  for (const auto& text : texts) {
    ids.push_back(tokens(text));
  }
  const auto order = order_by_length(ids);
  const auto size = model->options.hidden_size() *
      static_cast<int64_t>(options.pooling().size());
  const auto vectors = at::empty(
      {static_cast<int64_t>(texts.size()), size},
      model->word_embeddings.options().dtype(torch::kFloat));
  int64_t num_tokens = 0;
  for (size_t begin = 0; begin < order.size();) {
    std::vector<const Ids*> batch;
    size_t end = begin;
    for (; end < order.size(); ++end) {
      batch.push_back(&ids[static_cast<size_t>(order[end])]);
      // The first is the longest.
      if (batch.size() > 1 &&
          static_cast<int64_t>(batch.size() * batch[0]->size()) >
              call.batch_tokens()) {
        batch.pop_back();
        break;
      }
      num_tokens += static_cast<int64_t>(batch.back()->size());
    }
    const auto rows = at::tensor(
        c10::ArrayRef<int64_t>(order).slice(begin, end - begin), torch::kLong);
    vectors.index_copy_(
        0, rows.to(vectors.device()), encode_batch(batch, call.padded()));
    begin = end;
    if (call.on_batch()) {
      call.on_batch()(static_cast<int64_t>(end), num_tokens);
    }
  }
  return vectors;
}

Tensor SentenceEncoder::encode_batch(
    const std::vector<const Ids*>& batch,
    bool padded) {
  Ids all;
  Ids ends = {0};
  for (const auto* ids : batch) {
    all.insert(all.end(), ids->begin(), ids->end());
    ends.push_back(static_cast<int64_t>(all.size()));
  }
  const auto device = model->word_embeddings.device();
  const auto cu_seqlens = at::tensor(ends, torch::kLong).to(device);
  const auto ids = at::tensor(all, torch::kLong).to(device);
  Tensor hidden;
  if (padded) {
    const auto lengths = cu_seqlens.diff();
    const auto is_token =
        at::arange(lengths.max().item<int64_t>(), lengths.options()) <
        lengths.unsqueeze(-1);
    const auto padded_ids = at::zeros(is_token.sizes(), ids.options())
                                .masked_scatter(is_token, ids);
    hidden = model->forward(padded_ids, lengths).index({is_token});
  } else {
    hidden = model->forward_packed(ids, cu_seqlens);
  }
  auto vectors = pool(hidden.to(torch::kFloat), cu_seqlens, options.pooling());
  return options.normalize()
      ? vectors / vectors.norm(2, -1, /*keepdim=*/true).clamp_min(1e-12)
      : vectors;
}

} // namespace torch_attention::models
