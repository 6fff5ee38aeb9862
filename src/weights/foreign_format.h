#pragma once

#include <weights/files/mapped_file.h>
#include <weights/files/zip_archive.h>

namespace torch_attention::weights {

// Known formats of weights that are not supported. They are recognised by their
// content, and the errors give the line or command that converts them.

/// Throws c10::Error if the bytes are a file in such a format.
void refuse_foreign_format(const files::Bytes& bytes);

/// Throws c10::Error for a zip file that is not an archive of LibTorch.
[[noreturn]] void refuse_foreign_zip(const files::ZipArchive& archive);

/// Throws c10::Error if the bytes, which begin like a zip file, are several zip
/// files one after the other.
void refuse_several_zips(const files::Bytes& bytes);

/// How to read a distributed checkpoint.
inline constexpr const char* kGiveFolder =
    "Give the path of its folder, where the file \".metadata\" lists all shards";

} // namespace torch_attention::weights
