#pragma once

#include <weights/files/weight_file.h>
#include <weights/files/zip_archive.h>

namespace torch_attention::weights::files {

/// Returns whether the zip file was written by `torch.save`, TorchScript or C++
/// `torch::save`.
bool is_torch_archive(const ZipArchive& archive);

/// Reads an archive of `torch.save`, TorchScript or C++ `torch::save`. Its code
/// is neither compiled nor run. Throws c10::Error if the archive is invalid.
WeightFile read_torch_archive(std::shared_ptr<const ZipArchive> archive);

/// Reads an archive in which `torch.save` stored one tensor; its key is "".
WeightFile read_torch_tensor(std::shared_ptr<const ZipArchive> archive);

} // namespace torch_attention::weights::files
