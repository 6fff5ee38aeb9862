#pragma once

#include <weights/files/weight_file.h>
#include <weights/read.h>

#include <string>
#include <vector>

namespace torch_attention::weights {

/// Returns `prefix` with a dot at its end; "" stays "".
std::string dotted(const std::string& prefix);

/// Returns the part of the file below `prefix`, which is removed from the
/// names. Looks in the file's state dict first, then in the whole file. Throws
/// c10::Error if there is no such part, or if it is ambiguous.
files::WeightFile select_below(
    files::WeightFile file,
    const std::string& prefix);

/// Reads the part of a file below `prefix`; of a sharded model, only the files
/// that have keys there.
files::WeightFile read_below(
    const std::string& path,
    const std::string& prefix,
    const ReadRules& rules = {});

/// Returns the prefixes below which the file has all `keys`.
std::vector<std::string> prefixes_with(
    const files::WeightFile& file,
    const std::vector<std::string>& keys);

/// Returns the paths of attention modules among the keys of a file, by their
/// names alone.
std::vector<std::string> attention_paths(const std::vector<std::string>& keys);

/// Throws c10::Error, which suggests other paths, unless the file has keys
/// below `start`.
void check_prefix(
    bool has_keys,
    const std::string& start,
    const std::vector<std::string>& keys);

/// Returns the keys, below the state dict, of the whole file that `file` was
/// selected from.
std::vector<std::string> whole_keys(const files::WeightFile& file);

} // namespace torch_attention::weights
