#include <weights/files/export_archive.h>

#include <check.h>
#include <json.h>
#include <weights/files/dtypes.h>
#include <weights/files/records.h>
#include <weights/files/tensor_view.h>
#include <weights/files/torch_archive.h>

#include <c10/util/Exception.h>

#include <cstdint>
#include <optional>
#include <unordered_map>
#include <utility>

namespace torch_attention::weights::files {

namespace {

constexpr const char* kFormat = "torch.export archive";
constexpr const char* kWeights = "data/weights/";

/// Returns the names of the archive's weight records that end with `end`.
std::vector<std::string> weight_records(
    const ZipArchive& archive,
    const std::string& end) {
  std::vector<std::string> records;
  for (const auto& name : archive.names()) {
    if (ends_with(name, end) && name.find(kWeights) != std::string::npos) {
      records.push_back(name);
    }
  }
  return records;
}

/// Returns the names of the records that describe the models' weights.
std::vector<std::string> weight_configs(const ZipArchive& archive) {
  return weight_records(archive, "_weights_config.json");
}

/// Returns the names of the torch.save files with the models' state dicts.
/// LibTorch before 2.8 writes a single one under another name.
std::vector<std::string> state_dict_files(const ZipArchive& archive) {
  constexpr const char* kOld = "serialized_state_dict.pt";
  if (archive.contains(kOld)) {
    return {kOld};
  }
  return weight_records(archive, ".pt");
}

/// A tensor's entry in a weights config.
struct ExportEntry {
  std::string key;
  std::string record;
  std::optional<bool> use_pickle;
  std::optional<int64_t> dtype;
  std::optional<int64_t> offset;
  std::vector<int64_t> sizes;
  std::vector<int64_t> strides;
};

int64_t to_integer(const JsonValue& value, const char* expected) {
  check_kind(value, JsonValue::Kind::kInteger, expected);
  return value.integer;
}

constexpr const char* kSize = "an integer of 64 bits as a size";

/// Reads sizes or strides: [{"as_int": 3}, {"as_int": 4}].
void read_sizes(
    const JsonPath& path,
    const JsonValue& value,
    std::vector<int64_t>& sizes) {
  constexpr size_t kElement = 5;
  if (path.size() == kElement) {
    check_kind(value, JsonValue::Kind::kObject, "a size");
    sizes.push_back(-1); // until the number is read
  } else if (path.size() == kElement + 1 && path.back() == "as_int") {
    sizes.back() = to_integer(value, kSize);
  }
}

/// Reads a value at "tensor_meta" or below it.
void read_meta(
    const JsonPath& path,
    const JsonValue& value,
    ExportEntry& entry) {
  if (path.size() < 4) {
    return;
  }
  const auto& name = path[3];
  if (name == "sizes") {
    read_sizes(path, value, entry.sizes);
  } else if (name == "strides") {
    read_sizes(path, value, entry.strides);
  } else if (name == "dtype" && path.size() == 4) {
    entry.dtype = to_integer(value, "an integer of 64 bits as a dtype");
  } else if (
      name == "storage_offset" && path.size() == 5 && path[4] == "as_int") {
    entry.offset = to_integer(value, kSize);
  }
}

/// Reads a value at "config" or below it: {"config": {KEY: {"path_name":
/// ...}}}.
void read_entry(
    const JsonPath& path,
    const JsonValue& value,
    std::vector<ExportEntry>& entries) {
  if (path.size() == 2) {
    check_kind(
        value, JsonValue::Kind::kObject, "an object that describes a tensor");
    check_key_length(path[1]);
    entries.emplace_back();
    entries.back().key = path[1];
    return;
  }
  auto& entry = entries.back();
  const auto& name = path[2];
  if (name == "tensor_meta") {
    read_meta(path, value, entry);
  } else if (name == "path_name" && path.size() == 3) {
    check_kind(value, JsonValue::Kind::kText, "a text as \"path_name\"");
    entry.record = value.text;
  } else if (name == "use_pickle" && path.size() == 3) {
    check_kind(
        value, JsonValue::Kind::kBool, "true or false as \"use_pickle\"");
    entry.use_pickle = value.integer != 0;
  }
}

std::vector<ExportEntry> read_config(
    const std::string& record,
    const Bytes& bytes) {
  std::vector<ExportEntry> entries;
  bool has_config = false;
  read_json(bytes.text(), [&](const JsonPath& path, const JsonValue& value) {
    if (path.empty() || path.front() != "config") {
      return;
    }
    if (path.size() == 1) {
      has_config = value.kind == JsonValue::Kind::kObject;
    } else if (has_config) {
      read_entry(path, value, entries);
    }
  });
  TORCH_ATTENTION_CHECK(
      has_config,
      "the file is damaged: \"{}\" does not describe tensors: it has no "
      "\"config\"",
      record);
  return entries;
}

/// Reads the weights that one config describes.
class ConfigReader {
 public:
  ConfigReader(const ZipArchive& archive, WeightFile& file)
      : archive_(archive), file_(file) {}

  void read(const std::string& config) {
    const auto folder = config.substr(0, config.rfind('/') + 1);
    for (const auto& entry : read_config(config, archive_.read(config))) {
      add(folder, entry);
    }
  }

  RecordNames records;

 private:
  void add(const std::string& folder, const ExportEntry& entry) {
    const auto& key = entry.key;
    if (entry.use_pickle.value_or(false)) {
      file_.unreadable.emplace_back(key, "is no plain tensor, but a pickle");
      return;
    }
    TORCH_ATTENTION_CHECK(
        entry.use_pickle && !entry.record.empty() && entry.dtype &&
            entry.offset,
        "the file is damaged: the description of \"{}\" lacks use_pickle, "
        "path_name, dtype or storage_offset",
        key);
    const auto dtype = dtype_from_export(*entry.dtype);
    TORCH_ATTENTION_CHECK(
        dtype, "the file has \"{}\" of the dtype number {}", key, *entry.dtype);
    const auto record = folder + entry.record;
    auto storage = storages_.find(record);
    if (storage == storages_.end()) {
      storage =
          storages_.emplace(record, aligned(archive_.find(record), 16)).first;
    }
    TORCH_ATTENTION_CHECK(
        !file_.tensors.contains(key),
        "the file has several models with the key \"{}\"",
        key);
    file_.tensors.insert(
        key,
        view_tensor(
            storage->second,
            {*dtype, entry.sizes, entry.strides, *entry.offset}));
    records.emplace(key, record);
  }

  const ZipArchive& archive_;
  WeightFile& file_;
  std::unordered_map<std::string, Bytes> storages_;
};

WeightFile read_state_dict_file(
    std::shared_ptr<const ZipArchive> archive,
    const std::vector<std::string>& records) {
  TORCH_ATTENTION_CHECK(
      records.size() == 1,
      "the file has the weights of {} models; export them one by one",
      records.size());
  auto inner =
      std::make_shared<const ZipArchive>(archive->find(records.front()));
  TORCH_CHECK(
      is_torch_archive(*inner),
      "the file is damaged: its state dict is no torch.save file");
  auto file = read_torch_archive(std::move(inner));
  file.format = kFormat;
  file.check_rest = check_other_records(std::move(archive), {});
  return file;
}

} // namespace

bool is_export_archive(const ZipArchive& archive) {
  return !state_dict_files(archive).empty() || !weight_configs(archive).empty();
}

WeightFile read_export_archive(std::shared_ptr<const ZipArchive> archive) {
  const auto state_dicts = state_dict_files(*archive);
  if (!state_dicts.empty()) {
    return read_state_dict_file(std::move(archive), state_dicts);
  }
  WeightFile file;
  file.format = kFormat;
  ConfigReader reader(*archive, file);
  for (const auto& config : weight_configs(*archive)) {
    reader.read(config);
  }
  file.check_rest = check_other_records(archive, reader.records);
  file.check = check_records(
      std::move(archive), std::move(reader.records), file.tensors);
  return file;
}

} // namespace torch_attention::weights::files
