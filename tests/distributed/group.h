#pragma once

#include <torch_attention/distributed/group.h>
#include <torch_attention/distributed/weights.h>

#include <chrono>
#include <cstdint>
#include <string>
#include <vector>

/// The needs of programs that `launch` starts.
namespace torch_attention::testing {

/// The processes that `launch` started.
inline const distributed::Group& group() {
  static const auto all = distributed::group_from_environment(
      distributed::GroupOptions().timeout(std::chrono::seconds(60)));
  return all;
}

inline int64_t processes() {
  return group()->getSize();
}

/// The part of the whole's tensor that this process has.
inline torch::Tensor own_part(
    const torch::Tensor& whole,
    const std::string& key,
    const std::vector<WeightShard>& shards) {
  for (const auto& shard : shards) {
    if (shard.key == key) {
      return whole.narrow(shard.dimension, shard.start, shard.size);
    }
  }
  return whole;
}

} // namespace torch_attention::testing
