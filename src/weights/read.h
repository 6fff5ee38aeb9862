#pragma once

#include <weights/files/mapped_file.h>
#include <weights/files/weight_file.h>

#include <string>

namespace torch_attention::weights {

/// Reads a file by its content, not its extension; in a folder the file that
/// `find_weight_file` finds. For a model in several files, opens only those
/// that have keys beginning with `prefix`. Throws c10::Error that says what is
/// wrong with the file.
files::WeightFile read_weight_file(
    const std::string& path_or_folder,
    const std::string& prefix = "");

/// Reads bytes that are one whole file, by their content.
files::WeightFile read_weight_bytes(const files::Bytes& bytes);

} // namespace torch_attention::weights
