#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

namespace torch_attention::weights::files {

/// Bytes, and what keeps them in memory.
struct Bytes {
  std::shared_ptr<const void> owner;
  const uint8_t* data = nullptr;
  size_t size = 0;
  /// Whether they are a part of a `MappedFile`.
  bool mapped = false;

  Bytes part(size_t offset, size_t length) const {
    return {owner, data + offset, length, mapped};
  }
  std::string_view text() const {
    return {reinterpret_cast<const char*>(data), size};
  }
};

/// A file in memory, read-only; what is not read costs no memory. Another
/// program that cuts the file short meanwhile ends this one, as with any mapped
/// file.
class MappedFile {
 public:
  /// Throws c10::Error if there is no such file, or it is empty.
  static Bytes open(const std::string& path);

  ~MappedFile();
  MappedFile(const MappedFile&) = delete;
  MappedFile& operator=(const MappedFile&) = delete;
  MappedFile(MappedFile&&) = delete;
  MappedFile& operator=(MappedFile&&) = delete;

 private:
  MappedFile(const uint8_t* data, size_t size) : data_(data), size_(size) {}

  const uint8_t* data_;
  size_t size_;
};

/// Lets a mapped file be written to in memory, where its tensors are handed
/// out. The file itself stays as it is. Throws c10::Error if the system
/// refuses.
void make_writable(const Bytes& file);

/// Tells the system that bytes of a mapped file are not needed for now: they
/// no longer count as memory of this program.
void release(const Bytes& bytes);

} // namespace torch_attention::weights::files
