#pragma once

#include <weights/files/mapped_file.h>

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

/// The index of a sharded model, in the format of Python's `save_pretrained`.
namespace torch_attention::weights::files {

/// A key, and the name of the file that has it, in the index's folder.
struct IndexEntry {
  std::string key;
  std::string file;
};

/// Throws c10::Error unless `name` is the name of a file in the index's folder
/// that is not hidden.
void check_file_name(std::string_view name);

/// Returns the entries in their order. Throws c10::Error if the bytes are not
/// an index, or if it names a file in another folder.
std::vector<IndexEntry> read_index(const Bytes& bytes);

/// Writes an index, sorted by key, for tensors of `total_size` bytes. If it
/// throws, the old file has not changed.
void write_index(
    std::vector<IndexEntry> entries,
    uint64_t total_size,
    const std::string& path);

} // namespace torch_attention::weights::files
