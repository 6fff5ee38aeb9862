#include "packed.h"

#include <torch_attention/nn/functional/attention.h>

namespace encoder {

using torch::Tensor;
using torch_attention::MultiHeadAttention;

PackedLengths::PackedLengths(const std::vector<int64_t>& lengths) {
  std::vector<int64_t> begins = {0};
  std::vector<int64_t> places;
  for (const auto length : lengths) {
    TORCH_CHECK(length > 0, "Expected sequences with tokens");
    if (runs.empty() || runs.back().length != length) {
      runs.push_back({begins.back(), 0, length});
    }
    ++runs.back().count;
    begins.push_back(begins.back() + length);
    for (int64_t t = 0; t < length; ++t) {
      places.push_back(t);
    }
  }
  offsets = torch::tensor(begins, torch::kLong);
  positions = torch::tensor(places, torch::kLong);
}

Tensor attend_packed(
    MultiHeadAttention& attention,
    const Tensor& x,
    const PackedLengths& lengths,
    const std::vector<Tensor>& biases) {
  const auto& options = attention->options;
  const auto heads = {x.size(0), options.num_heads(), attention->head_dim};
  const auto query = attention->W_query->forward(x).view(heads);
  const auto key = attention->W_key->forward(x).view(heads);
  const auto value = attention->W_value->forward(x).view(heads);
  torch_attention::functional::ScaledDotProductAttentionFuncOptions call;
  call.scale(options.scale());
  std::vector<Tensor> contexts;
  for (size_t i = 0; i < lengths.runs.size(); ++i) {
    const auto& run = lengths.runs[i];
    // (N, H, D) -> (B, H, T, D), a view
    const auto part = [&](const Tensor& packed) {
      return packed.slice(0, run.begin, run.begin + run.count * run.length)
          .unflatten(0, {run.count, run.length})
          .transpose(1, 2);
    };
    if (!biases.empty()) {
      call.bias(biases[i]);
    }
    contexts.push_back(
        torch_attention::functional::scaled_dot_product_attention(
            part(query), part(key), part(value), call)
            .transpose(1, 2)
            .flatten(0, 1));
  }
  return attention->out_proj->forward(torch::cat(contexts).flatten(1));
}

} // namespace encoder
