#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

namespace torch_attention::weights::files {

/// Bytes, and the owner that keeps them in memory.
struct Bytes {
  std::shared_ptr<const void> owner;
  const uint8_t* data = nullptr;
  size_t size = 0;
  /// Whether they are part of a `MappedFile`.
  bool mapped = false;

  Bytes part(size_t offset, size_t length) const {
    return {owner, data + offset, length, mapped};
  }
  std::string_view text() const {
    return {reinterpret_cast<const char*>(data), size};
  }
};

/// A file mapped into memory, read-only; parts that are not read take no
/// memory. If another program truncates the file meanwhile, this program is
/// terminated, as with any mapped file.
class MappedFile {
 public:
  /// Throws c10::Error if the path is not a readable file, or the file is
  /// empty.
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

/// Makes the memory of a mapped file writable, for tensors that are returned
/// without copying. The file itself does not change. Throws c10::Error if the
/// system refuses.
void make_writable(const Bytes& file);

/// Releases the physical memory of bytes of a mapped file, which are read from
/// the file again if needed.
void release(const Bytes& bytes);

} // namespace torch_attention::weights::files
