#pragma once

#include <weights/files/mapped_file.h>

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

/// The index of a model in several files, which Python's `save_pretrained`
/// writes as well.
namespace torch_attention::weights::files {

/// A key and the file that has it, which lies beside the index.
struct IndexEntry {
  std::string key;
  std::string file;
};

/// Throws c10::Error unless `name` is that of a file in the same folder as the
/// index, and not a hidden one.
void check_file_name(std::string_view name);

/// Returns the entries in their order. Throws c10::Error if the bytes are no
/// index, or if it names a file elsewhere.
std::vector<IndexEntry> read_index(const Bytes& bytes);

/// Writes an index of tensors that take `total_size` bytes, sorted by their
/// keys. On c10::Error the old file stays as it was.
void write_index(
    std::vector<IndexEntry> entries,
    uint64_t total_size,
    const std::string& path);

} // namespace torch_attention::weights::files
