#pragma once

#include <weights/files/weight_file.h>

#include <string>
#include <vector>

namespace torch_attention::weights {

/// Returns `prefix` with a dot at its end; "" stays "".
std::string dotted(const std::string& prefix);

/// Returns the part of the file below `prefix`, with names that lack the
/// prefix. Looks in the file's state dict first, then in the whole file. Throws
/// c10::Error if there is no such part, or several could be meant.
files::WeightFile select_below(
    files::WeightFile file,
    const std::string& prefix);

/// Reads a file, or only what it has below `prefix` if it is one of several,
/// and selects that part.
files::WeightFile read_below(
    const std::string& path,
    const std::string& prefix);

/// Returns the prefixes below which the file has all `keys`.
std::vector<std::string> prefixes_with(
    const files::WeightFile& file,
    const std::vector<std::string>& keys);

/// Returns the paths of attention modules among the keys of a file. Looks at
/// names only.
std::vector<std::string> attention_paths(const std::vector<std::string>& keys);

/// Throws c10::Error, which names paths that may be meant, unless the file has
/// keys below `start`.
void check_prefix(
    bool has_keys,
    const std::string& start,
    const std::vector<std::string>& keys);

/// Returns the keys of the whole file from which `file` was selected, below its
/// state dict.
std::vector<std::string> whole_keys(const files::WeightFile& file);

} // namespace torch_attention::weights
