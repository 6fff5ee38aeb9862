#pragma once

#include <weights/files/mapped_file.h>

#include <torch/types.h>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

namespace torch_attention::weights::files {

/// A tensor that a file stores in another form than its values: as blocks of
/// small integers with scales, for example.
struct StoredValues {
  /// The name of the form: "Q4_K", "GPTQ of 4 bits".
  std::string form;
  std::vector<int64_t> shape;
  torch::ScalarType dtype = torch::kFloat;
  /// Bytes in the file.
  uint64_t bytes = 0;
  /// Where they are in mapped files: these pages are released after `decode`.
  std::vector<Bytes> source;
  /// Whether these are the values that were saved, only in several parts.
  bool is_exact = false;
  /// Whether an adapter was added to them.
  bool is_merged = false;
  /// Does the part of `decode` that may fail. Empty if there is none.
  std::function<void()> prepare;
  /// Writes all values in the order of rows, as numbers of `dtype`. It neither
  /// allocates memory nor throws: whatever can be wrong with the file was found
  /// before.
  std::function<void(void* values)> decode;
};

/// Makes a `StoredValues::decode` of a function that writes float32.
template <typename Decoder>
std::function<void(void* values)> floats_by(Decoder decoder) {
  return [decoder = std::move(decoder)](void* values) mutable {
    decoder(static_cast<float*>(values));
  };
}

/// Tensors whose values are computed when they are needed, one at a time.
///
/// Each is a tensor on the CPU with an address range of its own, which
/// takes no memory and cannot be read before `fill`: views of it are made,
/// moved and compared by shape as of any tensor.
class StoredTensors {
 public:
  /// Returns the tensor of these values. Throws c10::Error if there is no
  /// address range for it.
  torch::Tensor add(StoredValues values);

  /// Returns the stored form of a tensor or of a view of one; null for other
  /// tensors.
  const StoredValues* find(const torch::Tensor& tensor) const;

  /// Makes the memory of a tensor, or of a view of one, accessible. After it
  /// `fill` cannot fail. Throws c10::Error if the system refuses.
  void prepare(const torch::Tensor& tensor) const;

  /// Computes the values of a tensor, or of a view of one, if they are not
  /// there yet. Does nothing for other tensors.
  void fill(const torch::Tensor& tensor) const;

  /// Gives the memory of a filled tensor back. Until `fill` computes it again,
  /// its values are zeros.
  void release(const torch::Tensor& tensor) const;

  /// Takes the tensors of another file as well.
  void join(const StoredTensors& other);

  /// Returns only the one that `tensor` is a view of, if there is one.
  StoredTensors only(const torch::Tensor& tensor) const;

  bool empty() const {
    return ranges_.empty();
  }

 private:
  class Range;

  /// Returns the range that a tensor's memory is in; null if there is none.
  Range* range_of(const torch::Tensor& tensor) const;

  /// By address.
  std::map<const void*, std::shared_ptr<Range>> ranges_;
};

} // namespace torch_attention::weights::files
