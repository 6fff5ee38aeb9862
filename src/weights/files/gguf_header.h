#pragma once

#include <weights/files/mapped_file.h>

#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace torch_attention::weights::files {

/// Throws c10::Error: the file is damaged or no GGUF file, because of
/// `problem`.
[[noreturn]] void fail_as_gguf(const std::string& problem);

/// The beginning of a GGUF file, before its data: metadata, and the names,
/// shapes, types and places of tensors. Its texts are in the file's memory.
class GgufHeader {
 public:
  struct Tensor {
    std::string_view name;
    /// As LibTorch has it, with the dimension of rows last; the file lists it
    /// first.
    std::vector<int64_t> shape;
    /// ggml's number of the type.
    uint32_t type = 0;
    /// From the start of the data.
    uint64_t offset = 0;
  };

  /// Throws c10::Error if the header is invalid. Whether tensors lie in the
  /// data is not checked.
  explicit GgufHeader(const Bytes& file);

  /// In the file's order. Names are unique.
  const std::vector<Tensor>& tensors() const {
    return tensors_;
  }

  /// Returns the part of the file after the header and its padding.
  Bytes data() const;

  /// The number of bytes that each tensor's offset is a multiple of.
  uint64_t alignment() const {
    return alignment_;
  }

  /// Returns a text of the metadata; none if there is no such text.
  std::optional<std::string_view> text(std::string_view key) const;

  /// Returns an integer of the metadata, or the element `index` of a list of
  /// integers; none if there is no such integer, or it is negative.
  std::optional<int64_t> integer(std::string_view key, uint64_t index = 0)
      const;

  bool has(std::string_view key) const {
    return metadata_.find(key) != metadata_.end();
  }

  /// Returns the keys of the metadata, sorted.
  std::vector<std::string_view> keys() const;

  /// Returns whether a value of the metadata is a list.
  bool is_list(std::string_view key) const;

  /// Returns the number of elements of a list; 1 for another value, 0 without
  /// one.
  uint64_t length(std::string_view key) const;

  /// Return a number with a fraction, or a bool, of the metadata or a list in
  /// it; none if it has another type. A float32 is the number of the fewest
  /// digits that is stored as it: 1e-5, not 9.99999974e-6.
  std::optional<double> number(std::string_view key, uint64_t index = 0) const;
  std::optional<bool> flag(std::string_view key, uint64_t index = 0) const;

  /// Returns a list of texts; none if the value is another one.
  std::optional<std::vector<std::string_view>> texts(
      std::string_view key) const;

 private:
  class Reader;

  /// A value of the metadata, or the elements of a list.
  struct Value {
    /// The type of the value, or of each element.
    uint32_t type = 0;
    bool is_list = false;
    uint64_t count = 1;
    /// Where it begins in the file.
    size_t begin = 0;
  };

  /// Returns where the value or the element `index` of a list begins, and its
  /// type; none if it is no number or bool, or there is none.
  std::optional<std::pair<size_t, uint32_t>> find_number(
      std::string_view key,
      uint64_t index) const;

  void read_metadata(Reader& reader, uint64_t count);
  void read_tensors(Reader& reader, uint64_t count);
  void find_data(size_t end_of_header);

  Bytes file_;
  std::map<std::string_view, Value> metadata_;
  std::vector<Tensor> tensors_;
  uint64_t alignment_ = 0;
  size_t data_begin_ = 0;
};

} // namespace torch_attention::weights::files
