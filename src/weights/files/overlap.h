#pragma once

#include <weights/state_dict.h>

#include <cstdint>
#include <string>

namespace torch_attention::weights::files {

/// Returns the number of elements from the tensor's first address to its last:
/// less than `numel` if elements overlap.
int64_t elements_spanned(const torch::Tensor& tensor);

/// Limits how much is read of a file's tensors. Views of its bytes may overlap
/// (`unfold`, slices), so a small file can describe any number of bytes. On
/// average each byte of the file may be read `times` times; in addition, a
/// fixed number of bytes may be read from any file.
class OverlapLimit {
 public:
  /// `advice` is appended to the error, such as "; convert it in Python".
  OverlapLimit(const StateDict& tensors, uint64_t times, std::string advice);

  /// Counts elements that are read from a tensor. Throws c10::Error if they
  /// exceed the limit.
  void count(
      const std::string& key,
      const torch::Tensor& tensor,
      int64_t elements);

 private:
  uint64_t bytes_in_file_;
  uint64_t times_;
  uint64_t bytes_left_;
  std::string advice_;
};

} // namespace torch_attention::weights::files
