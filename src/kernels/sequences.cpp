#include <kernels/sequences.h>

#include <kernels/block_mask.h>

#include <ATen/ops/cat.h>

#include <algorithm>
#include <vector>

namespace torch_attention::kernels {

namespace {

struct Tokens {
  int64_t first;
  int64_t count;
};

Tokens tokens_of(const torch::Tensor& starts, int64_t i) {
  const auto* start = starts.const_data_ptr<int64_t>() + i;
  return {start[0], start[1] - start[0]};
}

/// Returns the part of a mask or bias that sequence i reads: its first rows and
/// columns.
torch::Tensor scores_of_sequence(
    const torch::Tensor& x,
    int64_t i,
    int64_t num_queries,
    int64_t num_keys) {
  if (!x.defined()) {
    return x;
  }
  auto result = x;
  if (x.dim() == 4 && x.size(0) != 1) {
    result = result.narrow(0, i, 1);
  }
  const auto cut = [&](int64_t dim, int64_t size) {
    if (result.dim() >= -dim && result.size(dim) != 1) {
      result = result.narrow(dim, 0, size);
    }
  };
  cut(-1, num_keys);
  cut(-2, num_queries);
  return result;
}

} // namespace

Attention sequence_of(const Attention& packed, int64_t i) {
  const auto queries = tokens_of(packed.query_starts, i);
  const auto keys = tokens_of(packed.key_starts, i);
  auto a = packed;
  a.query = packed.query.narrow(2, queries.first, queries.count);
  a.key = packed.key.narrow(2, keys.first, keys.count);
  a.value = packed.value.narrow(2, keys.first, keys.count);
  a.mask = scores_of_sequence(packed.mask, i, queries.count, keys.count);
  a.bias = scores_of_sequence(packed.bias, i, queries.count, keys.count);
  for (auto* counts : {&a.key_lengths, &a.query_offsets}) {
    if (counts->defined()) {
      *counts = counts->narrow(0, i, 1);
    }
  }
  a.heads.first += i * std::max(packed.query.size(1), packed.heads.all);
  a.query_starts = torch::Tensor();
  a.key_starts = torch::Tensor();
  return a;
}

torch::Tensor by_sequences(
    const Attention& packed,
    const std::function<torch::Tensor(const Attention&)>& output_of) {
  if (packed.block_mask.defined()) {
    const auto& query = packed.query;
    return by_sequences(
        with_dense_mask(packed, query.dim(), query.device()), output_of);
  }
  const auto count = packed.query_starts.size(0) - 1;
  if (count == 0) {
    auto empty = packed;
    for (auto* x :
         {&empty.query_starts,
          &empty.key_starts,
          &empty.key_lengths,
          &empty.query_offsets,
          &empty.mask,
          &empty.bias}) {
      *x = torch::Tensor();
    }
    return output_of(empty);
  }
  std::vector<torch::Tensor> outputs;
  outputs.reserve(static_cast<size_t>(count));
  for (int64_t i = 0; i < count; ++i) {
    outputs.push_back(output_of(sequence_of(packed, i)));
  }
  return at::cat(outputs, 2);
}

int64_t longest_sequence(const torch::Tensor& starts) {
  int64_t longest = 0;
  for (int64_t i = 0; i + 1 < starts.size(0); ++i) {
    longest = std::max(longest, tokens_of(starts, i).count);
  }
  return longest;
}

} // namespace torch_attention::kernels
