#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

namespace torch_attention {

/// A file that takes the place of another one only when it is whole.
class AtomicFile {
 public:
  /// Begins a new file beside `path`. Throws c10::Error if it cannot.
  explicit AtomicFile(std::string path);

  /// Without `commit` the new file is removed, and the old one is as it was.
  ~AtomicFile();
  AtomicFile(const AtomicFile&) = delete;
  AtomicFile& operator=(const AtomicFile&) = delete;
  AtomicFile(AtomicFile&&) = delete;
  AtomicFile& operator=(AtomicFile&&) = delete;

  /// Throws c10::Error if not all can be written.
  void write(const void* data, size_t size);

  /// Writes over what was written at `offset`.
  void overwrite(uint64_t offset, const void* data, size_t size);

  /// Gives the file its name, all of its bytes being on the disk.
  void commit();

 private:
  [[noreturn]] void fail(const char* what) const;

  std::string path_;
  std::string temporary_;
  int descriptor_ = -1;
};

} // namespace torch_attention
