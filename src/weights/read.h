#pragma once

#include <weights/files/mapped_file.h>
#include <weights/files/weight_file.h>

#include <string>

namespace torch_attention {

/// Reads a file by its content, not its extension; of a folder the one that
/// `find_weight_file` finds. Of a model in several files
/// only those are opened that have keys that begin with `prefix`. Throws
/// c10::Error that says what is wrong with the file.
WeightFile read_weight_file(
    const std::string& path_or_folder,
    const std::string& prefix = "");

/// The same for bytes that are one whole file.
WeightFile read_weight_bytes(const Bytes& bytes);

/// Throws c10::Error with the format's name, and what converts it, if it is one
/// that is known and not read.
void refuse_foreign_format(const Bytes& bytes);

} // namespace torch_attention
