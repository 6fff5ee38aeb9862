#pragma once

#include <weights/files/mapped_file.h>

#include <cstdint>
#include <string>
#include <vector>

/// The index of a model in several files, which Python's `save_pretrained`
/// writes as well.
namespace torch_attention::weights::files {

/// A key and the file that has it, which lies beside the index.
struct IndexEntry {
  std::string key;
  std::string file;
};

/// Returns the entries in their order. Throws c10::Error if the bytes are no
/// index, or if it names a file elsewhere.
std::vector<IndexEntry> read_index(const Bytes& bytes);

/// Writes an index of tensors that take `total_size` bytes. On c10::Error the
/// old file stays as it was.
void write_index(
    const std::vector<IndexEntry>& entries,
    uint64_t total_size,
    const std::string& path);

} // namespace torch_attention::weights::files
