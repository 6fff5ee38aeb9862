#pragma once

#include <weights/files/weight_file.h>
#include <weights/files/zip_archive.h>

#include <memory>

namespace torch_attention::weights::files {

/// Returns whether `torch.export.save` wrote the zip file (.pt2).
bool is_export_archive(const ZipArchive& archive);

/// Reads the state dict of a .pt2 file. Its program is neither compiled nor
/// run. Throws c10::Error if the file is invalid.
WeightFile read_export_archive(std::shared_ptr<const ZipArchive> archive);

} // namespace torch_attention::weights::files
