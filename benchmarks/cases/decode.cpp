#include <cases/decode.h>

#include <cases/operators.h>
#include <torch_attention/nn/block_cache.h>
#include <torch_attention/nn/functional/attention.h>
#include <torch_attention/nn/functional/paged_attention.h>
#include <torch_attention/nn/kv_cache.h>

#include <ATen/ops/cat.h>
#include <ATen/ops/randn.h>
#include <torch/utils.h>

#include <algorithm>
#include <memory>
#include <optional>
#include <vector>

namespace torch_attention::benchmarks {

namespace {

/// The number of tokens for which a cache has room beside those that it holds.
constexpr int64_t kRoom = 64;

} // namespace

DecodeData draw_decode(const Work& work) {
  at::manual_seed(kSeed);
  const auto draw = [&](int64_t heads, int64_t tokens) {
    return at::randn({work.B, heads, tokens, work.D});
  };
  const auto G = work.num_key_heads();
  DecodeData data;
  data.past_key = draw(G, work.S - 1);
  data.past_value = draw(G, work.S - 1);
  data.query = draw(work.H, 1);
  data.key = draw(G, 1);
  data.value = draw(G, 1);
  return data;
}

Candidate our_decode(
    const std::string& name,
    const DecodeData& data,
    torch::Dtype dtype) {
  const auto past = data.past_key.size(2);
  const auto cache = std::make_shared<KVCache>(
      KVCacheOptions(
          data.past_key.size(0), data.past_key.size(1), data.past_key.size(3))
          .max_length(past + kRoom)
          .dtype(dtype));
  cache->append(data.past_key, data.past_value);
  auto candidate = forward_candidate(name, [data, cache, past, dtype] {
    cache->truncate(past);
    cache->append(data.key, data.value);
    return functional::scaled_dot_product_attention(
               data.query.to(dtype), cache->keys(), cache->values())
        .to(data.query.scalar_type());
  });
  if (dtype == torch::kBFloat16) {
    candidate.allowed_difference = 2e-2;
  }
  return candidate;
}

Candidate block_decode(
    const std::string& name,
    const DecodeData& data,
    torch::Dtype dtype) {
  const auto past = data.past_key.size(2);
  const auto cache = std::make_shared<BlockCache>(
      BlockCacheOptions(data.past_key.size(1), data.past_key.size(3))
          .dtype(dtype));
  std::vector<int64_t> sequences;
  for (int64_t b = 0; b < data.past_key.size(0); ++b) {
    sequences.push_back(cache->admit());
  }
  const auto batch = cache->batch(sequences);
  // In pieces, as sequences grow, so that their blocks take turns.
  constexpr int64_t kPiece = 64;
  for (int64_t t = 0; t < past; t += kPiece) {
    const auto n = std::min(kPiece, past - t);
    batch.append(
        data.past_key.narrow(2, t, n), data.past_value.narrow(2, t, n));
  }
  // Rows of int8 take queries of any dtype.
  const auto query = dtype == torch::kInt8 ? data.query : data.query.to(dtype);
  const auto options =
      functional::ScaledDotProductAttentionFuncOptions().enable_gqa(
          data.query.size(1) != data.key.size(1));
  auto candidate =
      forward_candidate(name, [data, cache, batch, past, query, options] {
        for (const auto sequence : batch.sequences()) {
          cache->truncate(sequence, past);
        }
        batch.append(data.key, data.value);
        return functional::paged_attention(query, batch, options)
            .to(data.query.scalar_type());
      });
  if (dtype != torch::kFloat) {
    candidate.allowed_difference = 2e-2;
  }
  return candidate;
}

Candidate preallocated_decode(const std::string& name, const DecodeData& data) {
  const auto past = data.past_key.size(2);
  return forward_candidate(
      name,
      [data,
       past,
       keys = with_room(data.past_key, kRoom),
       values = with_room(data.past_value, kRoom)] {
        keys.narrow(2, past, 1).copy_(data.key);
        values.narrow(2, past, 1).copy_(data.value);
        return sdpa(
            data.query,
            keys.narrow(2, 0, past + 1),
            values.narrow(2, 0, past + 1),
            std::nullopt,
            false);
      });
}

Candidate concatenated_decode(const std::string& name, const DecodeData& data) {
  return forward_candidate(name, [data] {
    const auto keys = at::cat({data.past_key, data.key}, 2);
    const auto values = at::cat({data.past_value, data.value}, 2);
    return sdpa(data.query, keys, values, std::nullopt, false);
  });
}

} // namespace torch_attention::benchmarks
