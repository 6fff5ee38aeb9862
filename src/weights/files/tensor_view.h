#pragma once

#include <weights/files/mapped_file.h>

#include <torch/types.h>

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

namespace torch_attention::weights::files {

/// More dimensions than any model has; parts of LibTorch support no more.
inline constexpr size_t kMaxDimensions = 64;

/// The file's description of one of its tensors.
struct TensorLayout {
  torch::ScalarType dtype = torch::kFloat;
  std::vector<int64_t> sizes;
  /// In elements; not negative.
  std::vector<int64_t> strides;
  /// In elements, from the start of the storage.
  int64_t offset = 0;
};

/// Returns the strides of a contiguous tensor. Throws c10::Error for negative
/// sizes, and if the number of elements overflows.
std::vector<int64_t> contiguous_strides(const std::vector<int64_t>& sizes);

/// Returns the bytes at an address that is a multiple of `alignment`, copied if
/// necessary.
Bytes aligned(const Bytes& bytes, size_t alignment);

/// Returns a tensor that uses the memory of `storage`, which must be aligned
/// for its dtype. Throws c10::Error if `storage` does not hold all of its
/// elements.
torch::Tensor view_tensor(const Bytes& storage, const TensorLayout& layout);

/// Throws c10::Error if a bool tensor has a byte that is neither 0 nor 1.
void check_values(const std::string& key, const torch::Tensor& tensor);

} // namespace torch_attention::weights::files
