#pragma once

#include <weights/files/mapped_file.h>
#include <weights/files/weight_file.h>

#include <string>

namespace torch_attention::weights {

/// Reads a file by its content, not its extension; for a folder, the file that
/// `find_weight_file` returns. Of a sharded model, opens only files with keys
/// that begin with `prefix`. Throws c10::Error if the file is invalid.
files::WeightFile read_weight_file(
    const std::string& path_or_folder,
    const std::string& prefix = "");

/// Reads the bytes of a whole file, by their content.
files::WeightFile read_weight_bytes(const files::Bytes& bytes);

} // namespace torch_attention::weights
