#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

namespace torch_attention::weights::files {

/// Bytes and the owner that keeps them in memory.
struct Bytes {
  std::shared_ptr<const void> owner;
  const uint8_t* data = nullptr;
  size_t size = 0;
  /// True if they are a part of a `MappedFile`.
  bool mapped = false;

  Bytes part(size_t offset, size_t length) const {
    return {owner, data + offset, length, mapped};
  }
  std::string_view text() const {
    return {reinterpret_cast<const char*>(data), size};
  }
};

/// A file in memory, read-only; parts that are not read cost no memory. If
/// another program cuts the file short meanwhile, this program is ended, as
/// with any mapped file.
class MappedFile {
 public:
  /// Throws c10::Error if the file does not exist or is empty.
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

/// Makes the memory of a mapped file writable, for tensors that are handed out
/// where they lie. The file itself stays as it is. Throws c10::Error if the
/// system refuses.
void make_writable(const Bytes& file);

/// Tells the system that bytes of a mapped file are not needed for now, so that
/// they no longer count as memory of this program.
void release(const Bytes& bytes);

} // namespace torch_attention::weights::files
