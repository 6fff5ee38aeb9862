#pragma once

#include <weights/files/weight_file.h>
#include <weights/files/zip_archive.h>

#include <memory>

namespace torch_attention::weights::files {

/// Returns whether the zip file is one of `torch.export.save` (.pt2).
bool is_export_archive(const ZipArchive& archive);

/// Reads the state dict of a .pt2 file, whose program is neither compiled nor
/// run. Throws c10::Error that says what is wrong with the file.
WeightFile read_export_archive(std::shared_ptr<const ZipArchive> archive);

} // namespace torch_attention::weights::files
