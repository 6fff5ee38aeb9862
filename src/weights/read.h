#pragma once

#include <weights/files/mapped_file.h>
#include <weights/files/weight_file.h>

#include <string>

namespace torch_attention::weights {

/// Reads a file by its content, not its extension; of a folder the one that
/// `find_weight_file` finds. Of a model in several files only those are opened
/// that have keys that begin with `prefix`. Throws
/// c10::Error that says what is wrong with the file.
files::WeightFile read_weight_file(
    const std::string& path_or_folder,
    const std::string& prefix = "");

/// Does the same for bytes that are one whole file.
files::WeightFile read_weight_bytes(const files::Bytes& bytes);

/// Throws c10::Error with the format's name, and what converts it, if it is one
/// that is known and not read.
void refuse_foreign_format(const files::Bytes& bytes);

} // namespace torch_attention::weights
