#pragma once

// ordered_dict.h uses TORCH_CHECK and does not include it.
#include <c10/util/Exception.h>

#include <torch/ordered_dict.h>
#include <torch/types.h>

#include <weights/text.h>

#include <algorithm>
#include <cstdint>
#include <string>
#include <string_view>

namespace torch_attention::weights {

/// Tensors by their names, in the order of the file or module.
using StateDict = torch::OrderedDict<std::string, torch::Tensor>;

/// Returns whether any key begins with `start`.
inline bool has_keys_below(const StateDict& tensors, std::string_view start) {
  return std::any_of(tensors.begin(), tensors.end(), [&](const auto& item) {
    return starts_with(item.key(), start);
  });
}

/// Returns whether a tensor has more elements than its memory, by strides of
/// zero. In this way a small file can describe a huge tensor.
inline bool repeats_elements(const torch::Tensor& tensor) {
  // Counts elements: the number of bytes may exceed 2^64.
  return static_cast<uint64_t>(tensor.numel()) >
      tensor.storage().nbytes() / static_cast<size_t>(tensor.element_size());
}

inline uint64_t total_bytes(const StateDict& tensors) {
  uint64_t bytes = 0;
  for (const auto& item : tensors) {
    bytes += item.value().nbytes();
  }
  return bytes;
}

} // namespace torch_attention::weights
