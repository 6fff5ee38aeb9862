#include <weights/files/records.h>

#include <weights/files/tensor_view.h>

#include <set>
#include <utility>

namespace torch_attention::weights::files {

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
    for (const auto& key : keys) {
      check_values(key, tensors[key]);
    }
  };
}

} // namespace torch_attention::weights::files
