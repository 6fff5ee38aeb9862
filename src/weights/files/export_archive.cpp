#include <weights/files/export_archive.h>

#include <weights/files/dtypes.h>
#include <weights/files/json.h>
#include <weights/files/records.h>
#include <weights/files/tensor_view.h>
#include <weights/files/torch_archive.h>

#include <c10/util/Exception.h>

#include <cstdint>
#include <unordered_map>
#include <utility>

namespace torch_attention {

namespace {

constexpr const char* kFormat = "torch.export archive";
constexpr const char* kWeights = "data/weights/";

/// The records of the archive's weights whose names end so.
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

/// The records that describe the weights of the archive's models.
std::vector<std::string> weight_configs(const ZipArchive& archive) {
  return weight_records(archive, "_weights_config.json");
}

/// The torch.save files with the state dicts of the archive's models, as
/// LibTorch 2.8 and, under another name, those before it wrote them.
std::vector<std::string> state_dict_files(const ZipArchive& archive) {
  constexpr const char* kOld = "serialized_state_dict.pt";
  if (archive.contains(kOld)) {
    return {kOld};
  }
  return weight_records(archive, ".pt");
}

/// The JSON library would convert any number, undefined where it is too large.
int64_t to_integer(const nlohmann::json& value, const char* what) {
  const bool fits = value.is_number_integer() &&
      (!value.is_number_unsigned() ||
       value.get<uint64_t>() <= static_cast<uint64_t>(INT64_MAX));
  TORCH_CHECK(
      fits,
      "the file is damaged: expected an integer of 64 bits as ",
      what,
      ", but it has ",
      value.is_number() ? value.dump() : value.type_name());
  return value.get<int64_t>();
}

int64_t size_of(const nlohmann::json& number) {
  return to_integer(number.at("as_int"), "a size");
}

std::vector<int64_t> sizes_of(const nlohmann::json& numbers) {
  std::vector<int64_t> result;
  for (const auto& number : numbers) {
    result.push_back(size_of(number));
  }
  return result;
}

TensorLayout read_layout(const std::string& key, const nlohmann::json& meta) {
  const auto number = to_integer(meta.at("dtype"), "a dtype");
  const auto dtype = dtype_from_export(number);
  TORCH_CHECK(dtype, "the file has \"", key, "\" of the dtype number ", number);
  return {
      *dtype,
      sizes_of(meta.at("sizes")),
      sizes_of(meta.at("strides")),
      size_of(meta.at("storage_offset"))};
}

/// Reads the weights that one record describes.
class ConfigReader {
 public:
  ConfigReader(const ZipArchive& archive, WeightFile& file)
      : archive_(archive), file_(file) {}

  void read(const std::string& config) {
    const auto folder = config.substr(0, config.rfind('/') + 1);
    try {
      const auto json = parse_json(archive_.read(config));
      for (const auto& [key, entry] : json.at("config").items()) {
        add(folder, key, entry);
      }
    } catch (const nlohmann::json::exception& error) {
      TORCH_CHECK(
          false,
          "the file is damaged: \"",
          config,
          "\" does not describe tensors (",
          error.what(),
          ")");
    }
  }

  RecordNames records;

 private:
  void add(
      const std::string& folder,
      const std::string& key,
      const nlohmann::json& entry) {
    if (entry.at("use_pickle").get<bool>()) {
      file_.unreadable.emplace_back(key, "is no plain tensor, but a pickle");
      return;
    }
    const auto record = folder + entry.at("path_name").get<std::string>();
    auto storage = storages_.find(record);
    if (storage == storages_.end()) {
      storage =
          storages_.emplace(record, aligned(archive_.find(record), 16)).first;
    }
    TORCH_CHECK(
        !file_.tensors.contains(key),
        "the file has several models with the key \"",
        key,
        "\"");
    file_.tensors.insert(
        key,
        view_tensor(
            storage->second, read_layout(key, entry.at("tensor_meta"))));
    records.emplace(key, record);
  }

  const ZipArchive& archive_;
  WeightFile& file_;
  std::unordered_map<std::string, Bytes> storages_;
};

WeightFile read_state_dict_file(
    const ZipArchive& archive,
    const std::vector<std::string>& records) {
  TORCH_CHECK(
      records.size() == 1,
      "the file has the weights of ",
      records.size(),
      " models; export them one by one");
  auto inner =
      std::make_shared<const ZipArchive>(archive.find(records.front()));
  TORCH_CHECK(
      is_torch_archive(*inner),
      "the file is damaged: its state dict is no torch.save file");
  auto file = read_torch_archive(std::move(inner));
  file.format = kFormat;
  return file;
}

} // namespace

bool is_export_archive(const ZipArchive& archive) {
  return !state_dict_files(archive).empty() || !weight_configs(archive).empty();
}

WeightFile read_export_archive(std::shared_ptr<const ZipArchive> archive) {
  const auto state_dicts = state_dict_files(*archive);
  if (!state_dicts.empty()) {
    return read_state_dict_file(*archive, state_dicts);
  }
  WeightFile file;
  file.format = kFormat;
  ConfigReader reader(*archive, file);
  for (const auto& config : weight_configs(*archive)) {
    reader.read(config);
  }
  file.check = check_records(
      std::move(archive), std::move(reader.records), file.tensors);
  return file;
}

} // namespace torch_attention
