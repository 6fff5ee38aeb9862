#pragma once

#include <support/close.h>
#include <support/test.h>

#include <cstdint>
#include <vector>

namespace torch_attention::testing {

/// Everything that a cache holds, without the unused rows after a sequence.
struct CacheContents {
  std::vector<torch::Tensor> keys;
  std::vector<torch::Tensor> values;
  torch::Tensor lengths;
  torch::Tensor starts;
};

inline CacheContents contents(const KVCache& cache) {
  CacheContents all;
  all.lengths = cache.lengths().clone();
  all.starts = cache.starts().clone();
  const auto rows = all.lengths - all.starts;
  for (int64_t b = 0; b < rows.size(0); ++b) {
    const auto n = rows[b].item<int64_t>();
    all.keys.push_back(cache.keys()[b].slice(1, 0, n).clone());
    all.values.push_back(cache.values()[b].slice(1, 0, n).clone());
  }
  return all;
}

inline void check_unchanged(const KVCache& cache, const CacheContents& before) {
  const auto now = contents(cache);
  CHECK_THAT(now.lengths, IsEqualTo(before.lengths));
  CHECK_THAT(now.starts, IsEqualTo(before.starts));
  for (size_t b = 0; b < now.keys.size(); ++b) {
    CHECK_THAT(now.keys[b], IsEqualTo(before.keys[b]));
    CHECK_THAT(now.values[b], IsEqualTo(before.values[b]));
  }
}

/// Numbers of tokens, one for each sequence.
inline torch::Tensor counts(const std::vector<int64_t>& values) {
  return torch::tensor(values, torch::kLong);
}

} // namespace torch_attention::testing
