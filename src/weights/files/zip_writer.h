#pragma once

#include <atomic_file.h>

#include <cstddef>
#include <cstdint>
#include <string>

namespace torch_attention::weights::files {

/// Writes a zip file of records in PyTorch's format: uncompressed, each at a
/// multiple of 64 bytes. LibTorch's own writer ends the program if an error
/// occurs between two records.
class ZipWriter {
 public:
  explicit ZipWriter(AtomicFile& file) : file_(file) {}

  /// Throws c10::Error if the record cannot be written.
  void add(const std::string& name, const void* data, size_t size);

  /// Writes the directory of the records. No record can be added after it.
  void finish();

 private:
  void write(const std::string& bytes);

  AtomicFile& file_;
  uint64_t position_ = 0;
  uint64_t records_ = 0;
  std::string directory_;
};

} // namespace torch_attention::weights::files
