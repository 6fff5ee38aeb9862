#include "sentence_encoder.h"

#include "json_file.h"

#include <torch/utils.h>
#include <torch_attention/models/word_piece.h>

#include <algorithm>
#include <numeric>

namespace encoder {

using torch::Tensor;

namespace {

/// Returns the pooling of `1_Pooling/config.json`: a text, or a flag of each
/// kind.
Pooling read_pooling(const std::string& path) {
  const auto config = read_json(path);
  const std::vector<std::pair<std::string, Pooling>> kinds = {
      {"mean", Pooling::kMean},
      {"cls", Pooling::kCls},
      {"max", Pooling::kMax},
      {"mean_sqrt_len", Pooling::kMeanSqrt}};
  auto name = field<std::string>(config, "pooling_mode", "");
  if (name.empty()) {
    const std::string start = "pooling_mode_";
    for (const auto& item : config.items()) {
      if (item.key().compare(0, start.size(), start) == 0 &&
          item.value() == true) {
        name += (name.empty() ? "" : " and ") + item.key().substr(start.size());
      }
    }
  }
  for (const auto& [kind, pooling] : kinds) {
    if (name == kind || name == kind + "_token" || name == kind + "_tokens") {
      return pooling;
    }
  }
  C10_THROW_ERROR(
      Error,
      c10::str(
          path,
          ": expected the pooling mean, cls, max or mean_sqrt_len but got \"",
          name,
          "\""));
}

/// Returns what is after the last dot.
std::string last_part(const std::string& path) {
  return path.substr(path.rfind('.') + 1);
}

Tokenize word_pieces_of(const std::string& folder) {
  const torch_attention::models::WordPiece tokenizer(folder);
  return [tokenizer](const std::string& text, int64_t max_length) {
    return tokenizer.encode(text, max_length);
  };
}

} // namespace

SentenceConfig SentenceConfig::read(const std::string& folder) {
  SentenceConfig config;
  const auto limits = read_json_if_there(folder + "/sentence_bert_config.json");
  config.max_length = field<int64_t>(limits, "max_seq_length", 0);
  const auto path = folder + "/modules.json";
  if (!is_file(path)) {
    return config;
  }
  for (const auto& part : read_json_array(path)) {
    const auto type = last_part(field<std::string>(part, "type", "none"));
    const auto place = field<std::string>(part, "path", "");
    if (type == "Pooling") {
      config.pooling = read_pooling(folder + "/" + place + "/config.json");
    } else if (type == "Normalize") {
      config.normalizes = true;
    } else {
      TORCH_CHECK(
          type == "Transformer" && place.empty(),
          path,
          ": expected Transformer, Pooling and Normalize but got ",
          type,
          " in \"",
          place,
          "\"");
    }
  }
  return config;
}

Tensor pool(const Tensor& tokens, const Tensor& cu_seqlens, Pooling pooling) {
  const auto counts = cu_seqlens.diff();
  switch (pooling) {
    case Pooling::kCls:
      return tokens.index_select(0, cu_seqlens.slice(0, 0, -1));
    case Pooling::kMax:
      return torch::segment_reduce(tokens, "max", counts);
    case Pooling::kMean:
      return torch::segment_reduce(tokens, "mean", counts);
    case Pooling::kMeanSqrt:
      return torch::segment_reduce(tokens, "sum", counts) /
          counts.to(tokens.scalar_type()).sqrt().unsqueeze(-1);
  }
  C10_THROW_ERROR(Error, "not a Pooling");
}

SentenceEncoder::SentenceEncoder(const std::string& folder)
    : SentenceEncoder(folder, word_pieces_of(folder)) {}

SentenceEncoder::SentenceEncoder(const std::string& folder, Tokenize tokenize)
    : config(SentenceConfig::read(folder)),
      model(torch_attention::models::bert_from_pretrained(folder)),
      tokenize_(std::move(tokenize)) {}

int64_t SentenceEncoder::max_length() const {
  const auto most = model->context_length();
  return config.max_length > 0 ? std::min(config.max_length, most) : most;
}

std::vector<int64_t> SentenceEncoder::tokens(const std::string& text) const {
  auto ids = tokenize_(text, max_length());
  const auto vocab_size = model->word_embeddings.size(0);
  for (const auto id : ids) {
    TORCH_CHECK(
        id >= 0 && id < vocab_size,
        "Expected tokens from 0 to ",
        vocab_size - 1,
        ", which the model has, but the tokenizer gave ",
        id);
  }
  return ids;
}

Tensor SentenceEncoder::encode(
    const std::vector<std::string>& texts,
    const EncodeOptions& options) {
  const torch::NoGradGuard no_gradients;
  const auto count = static_cast<int64_t>(texts.size());
  auto vectors = torch::empty({count, model->options.hidden_size()});
  std::vector<std::vector<int64_t>> ids;
  ids.reserve(texts.size());
  for (const auto& text : texts) {
    ids.push_back(tokens(text));
  }
  // Neighbours have the same length, or nearly so. The longest come first: if
  // memory is short, it is so at once.
  std::vector<int64_t> order(texts.size());
  std::iota(order.begin(), order.end(), 0);
  const auto length = [&](int64_t text) {
    return static_cast<int64_t>(ids[static_cast<size_t>(text)].size());
  };
  std::stable_sort(order.begin(), order.end(), [&](int64_t a, int64_t b) {
    return length(a) > length(b);
  });

  int64_t num_tokens = 0;
  for (size_t begin = 0; begin < order.size();) {
    std::vector<const std::vector<int64_t>*> batch;
    const auto longest = length(order[begin]);
    auto end = begin;
    for (; end < order.size(); ++end) {
      const auto size = static_cast<int64_t>(batch.size()) + 1;
      if (!batch.empty() && size * longest > options.batch_tokens) {
        break;
      }
      batch.push_back(&ids[static_cast<size_t>(order[end])]);
      num_tokens += length(order[end]);
    }
    const auto rows = torch::tensor(
        c10::ArrayRef<int64_t>(order).slice(begin, end - begin), torch::kLong);
    vectors.index_copy_(0, rows, encode_batch(batch, options.padded));
    begin = end;
    if (options.on_batch) {
      options.on_batch(static_cast<int64_t>(end), num_tokens);
    }
  }
  return vectors;
}

Tensor SentenceEncoder::encode_batch(
    const std::vector<const std::vector<int64_t>*>& batch,
    bool padded) {
  std::vector<int64_t> all;
  std::vector<int64_t> ends = {0};
  for (const auto* ids : batch) {
    all.insert(all.end(), ids->begin(), ids->end());
    ends.push_back(static_cast<int64_t>(all.size()));
  }
  const auto cu_seqlens = torch::tensor(ends, torch::kLong);
  auto ids = torch::tensor(all, torch::kLong);
  Tensor hidden;
  if (padded) {
    const auto counts = cu_seqlens.diff();
    const auto most = counts.max().item<int64_t>();
    const auto is_token = torch::arange(most) < counts.unsqueeze(-1); // (B, T)
    auto padded_ids = torch::zeros(is_token.sizes(), torch::kLong);
    padded_ids.masked_scatter_(is_token, ids);
    hidden = model->forward(padded_ids, counts).index({is_token});
  } else {
    hidden = model->forward_packed(ids, cu_seqlens);
  }
  auto vectors = pool(hidden, cu_seqlens, config.pooling);
  if (config.normalizes) {
    vectors = vectors / vectors.norm(2, -1, /*keepdim=*/true).clamp_min(1e-12);
  }
  return vectors;
}

} // namespace encoder
