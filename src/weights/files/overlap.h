#pragma once

#include <weights/state_dict.h>

#include <cstdint>
#include <string>

namespace torch_attention::weights::files {

/// Returns the number of elements from the tensor's first place in memory to
/// its last: less than `numel` if they overlap.
int64_t elements_spanned(const torch::Tensor& tensor);

/// Limits what is read of a file's tensors. Views of its bytes may overlap
/// (`unfold`, slices), so that a small file can describe any number of bytes.
/// The limit is a number of times that each byte of the file is read, and a
/// number of bytes that may be read of every file.
class OverlapLimit {
 public:
  /// `advice` ends the message of the error: "; convert it in Python".
  OverlapLimit(const StateDict& tensors, uint64_t times, std::string advice);

  /// Counts elements that are read of a tensor. Throws c10::Error if they are
  /// too many.
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
