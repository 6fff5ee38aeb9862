#pragma once

#include <weights/files/weight_file.h>
#include <weights/files/zip_archive.h>

#include <memory>
#include <string>
#include <unordered_map>

namespace torch_attention::weights::files {

/// The records of the tensors, by key; "" for a tensor without elements.
using RecordNames = std::unordered_map<std::string, std::string>;

/// Returns `WeightFile::check` for tensors in the records of a zip file.
std::function<void(const std::vector<std::string>& keys)> check_records(
    std::shared_ptr<const ZipArchive> archive,
    RecordNames records,
    StateDict tensors);

/// Returns `WeightFile::check_rest` for a zip file, which checks all records
/// except `records`.
std::function<void()> check_other_records(
    std::shared_ptr<const ZipArchive> archive,
    const RecordNames& records);

} // namespace torch_attention::weights::files
