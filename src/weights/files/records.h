#pragma once

#include <weights/files/weight_file.h>
#include <weights/files/zip_archive.h>

#include <memory>
#include <string>
#include <unordered_map>

namespace torch_attention::weights::files {

/// The names of the records that hold the tensors, by key; "" for none.
using RecordNames = std::unordered_map<std::string, std::string>;

/// Returns the `WeightFile::check` of tensors in the records of a zip file.
std::function<void(const std::vector<std::string>& keys)> check_records(
    std::shared_ptr<const ZipArchive> archive,
    RecordNames records,
    StateDict tensors);

/// Returns the `WeightFile::check_rest` of a zip file: of all records but
/// those.
std::function<void()> check_other_records(
    std::shared_ptr<const ZipArchive> archive,
    const RecordNames& records);

} // namespace torch_attention::weights::files
