#pragma once

// GGUF files made by hand.

#include <weights/files/gguf.h>
#include <weights/files/mapped_file.h>

#include <torch/types.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

namespace torch_attention::testing {

/// Returns the bytes of a number.
template <typename T>
std::string bytes_of_number(T value) {
  return {reinterpret_cast<const char*>(&value), sizeof(value)};
}

/// The numbers of types in metadata, and of those of tensors, in GGUF files.
namespace gguf_types {
inline constexpr uint32_t kUint32 = 4;
inline constexpr uint32_t kInt32 = 5;
inline constexpr uint32_t kText = 8;
inline constexpr uint32_t kList = 9;
inline constexpr uint32_t kF32 = 0;
inline constexpr uint32_t kF16 = 1;
inline constexpr uint32_t kQ8_0 = 8;
inline constexpr uint32_t kF64 = 28;
inline constexpr uint32_t kQ1_0 = 41;
} // namespace gguf_types

/// A GGUF file, to which metadata and tensors are added.
class GgufFile {
 public:
  /// Adds a value of metadata by its type and bytes.
  GgufFile& add(
      const std::string& key,
      uint32_t type,
      const std::string& bytes) {
    ++values_;
    metadata_ += text(key) + bytes_of_number(type) + bytes;
    return *this;
  }

  GgufFile& add_text(const std::string& key, const std::string& value) {
    return add(key, gguf_types::kText, text(value));
  }

  GgufFile& add_number(const std::string& key, uint32_t value) {
    return add(key, gguf_types::kUint32, bytes_of_number(value));
  }

  GgufFile& add_numbers(
      const std::string& key,
      const std::vector<int32_t>& numbers) {
    auto bytes = bytes_of_number(gguf_types::kInt32) +
        bytes_of_number(uint64_t{numbers.size()});
    for (const auto number : numbers) {
      bytes += bytes_of_number(number);
    }
    return add(key, gguf_types::kList, bytes);
  }

  /// Adds a tensor of a type by its bytes, whose shape is as in LibTorch.
  GgufFile& add_tensor(
      const std::string& name,
      std::vector<int64_t> shape,
      uint32_t type,
      const std::string& bytes) {
    std::reverse(shape.begin(), shape.end());
    const auto padding = (kAlignment - data_.size() % kAlignment) % kAlignment;
    data_.append(padding, '\0');
    ++tensors_;
    infos_ += text(name) + bytes_of_number(static_cast<uint32_t>(shape.size()));
    for (const auto size : shape) {
      infos_ += bytes_of_number(size);
    }
    infos_ += bytes_of_number(type) + bytes_of_number(uint64_t{data_.size()});
    data_ += bytes;
    return *this;
  }

  GgufFile& add_tensor(const std::string& name, const torch::Tensor& tensor) {
    const auto values = tensor.contiguous();
    return add_tensor(
        name,
        values.sizes().vec(),
        values.scalar_type() == torch::kHalf ? gguf_types::kF16
                                             : gguf_types::kF32,
        {static_cast<const char*>(values.data_ptr()), values.nbytes()});
  }

  /// Returns the file up to the end of the last tensor.
  std::string bytes(uint32_t version = 3) const {
    auto header = "GGUF" + bytes_of_number(version) +
        bytes_of_number(tensors_) + bytes_of_number(values_) + metadata_ +
        infos_;
    const auto padding = (kAlignment - header.size() % kAlignment) % kAlignment;
    return header + std::string(padding, '\0') + data_;
  }

  static std::string text(const std::string& value) {
    return bytes_of_number(uint64_t{value.size()}) + value;
  }

 private:
  static constexpr size_t kAlignment = 32;

  uint64_t values_ = 0;
  uint64_t tensors_ = 0;
  std::string metadata_;
  std::string infos_;
  std::string data_;
};

/// Reads a file from memory that is as aligned as a mapped file's.
inline weights::files::WeightFile read_gguf_text(const std::string& text) {
  auto copy = std::make_shared<std::vector<std::max_align_t>>(
      text.size() / sizeof(std::max_align_t) + 1);
  auto* data = reinterpret_cast<uint8_t*>(copy->data());
  std::copy(text.begin(), text.end(), data);
  return weights::files::read_gguf({copy, data, text.size()});
}

/// Reads a file, and computes the values of all tensors.
inline weights::files::WeightFile read_filled(const GgufFile& file) {
  auto result = read_gguf_text(file.bytes());
  result.check(result.tensors.keys());
  for (const auto& item : result.tensors) {
    result.stored.fill(item.value());
  }
  return result;
}

} // namespace torch_attention::testing
