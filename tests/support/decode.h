#pragma once

#include <support/test.h>

#include <algorithm>
#include <vector>

namespace torch_attention::testing {

/// Decodes x (B, T, C) in chunks of the given sizes, repeating the last one.
inline torch::Tensor decode_in_chunks(
    MultiHeadAttention& attention,
    KVCache& cache,
    const torch::Tensor& x,
    const std::vector<int64_t>& chunks) {
  std::vector<torch::Tensor> contexts;
  int64_t begin = 0;
  for (size_t i = 0; begin < x.size(1); ++i) {
    const auto end = begin + chunks[std::min(i, chunks.size() - 1)];
    contexts.push_back(attention->decode(x.slice(1, begin, end), cache));
    begin = end;
  }
  return torch::cat(contexts, 1);
}

} // namespace torch_attention::testing
