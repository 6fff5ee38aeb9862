#pragma once

#include <weights/files/mapped_file.h>
#include <weights/files/pickle.h>
#include <weights/files/zip_archive.h>

#include <torch/types.h>

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

namespace torch_attention::weights::files {

/// Makes tensors from their descriptions in the pickle of an archive.
class TensorMaker {
 public:
  /// `folder` is the folder of the archive's records, and ends with "/".
  TensorMaker(const ZipArchive& archive, std::string folder);

  /// A tensor that uses the file's memory.
  struct Made {
    torch::Tensor tensor;
    /// The record with its elements; empty if it has none.
    std::string record;
    /// Why the tensor cannot be read, or "".
    std::string unreadable;
  };

  /// Makes the tensor of a value for which `is_tensor` returns true, if it can
  /// be read. Throws c10::Error if its description is invalid.
  Made make(const PickleValue& call);

 private:
  using Arguments = std::vector<const PickleValue*>;

  struct Storage {
    Bytes bytes;
    /// None for untyped storages.
    std::optional<torch::ScalarType> dtype;
    std::string record;
  };

  Made make(const PickleValue& call, int depth);
  Made make_by(std::string_view function, const Arguments& arguments);
  const Storage& storage(const PickleValue& persistent);

  const ZipArchive& archive_;
  std::string folder_;
  std::unordered_map<std::string_view, Storage> storages_;
};

} // namespace torch_attention::weights::files
