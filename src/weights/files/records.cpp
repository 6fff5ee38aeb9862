#include <weights/files/records.h>

#include <weights/files/overlap.h>
#include <weights/files/tensor_view.h>

#include <algorithm>
#include <set>
#include <utility>

namespace torch_attention::weights::files {

namespace {

/// The number of times that each byte of a file may be checked, if bool tensors
/// overlap.
constexpr uint64_t kMaxChecks = 64;

} // namespace

std::function<void(const std::vector<std::string>& keys)> check_records(
    std::shared_ptr<const ZipArchive> archive,
    RecordNames records,
    StateDict tensors) {
  return [archive = std::move(archive),
          records = std::move(records),
          tensors = std::move(tensors)](const std::vector<std::string>& keys) {
    // Tied tensors share a record.
    std::set<std::string> needed;
    for (const auto& key : keys) {
      needed.insert(records.at(key));
    }
    needed.erase("");
    for (const auto& record : needed) {
      archive->check(record);
    }
    OverlapLimit limit(tensors, kMaxChecks, "; the file is malicious");
    for (const auto& key : keys) {
      const auto& tensor = tensors[key];
      if (tensor.scalar_type() == torch::kBool) {
        limit.count(
            key, tensor, std::min(tensor.numel(), elements_spanned(tensor)));
        check_values(key, tensor);
      }
    }
  };
}

std::function<void()> check_other_records(
    std::shared_ptr<const ZipArchive> archive,
    const RecordNames& records) {
  std::set<std::string> of_tensors;
  for (const auto& [key, record] : records) {
    of_tensors.insert(record);
  }
  return [archive = std::move(archive), of_tensors = std::move(of_tensors)] {
    for (const auto& name : archive->names()) {
      if (of_tensors.count(name) == 0) {
        archive->check(name);
      }
    }
  };
}

} // namespace torch_attention::weights::files
