#include <format_text.h>
#include <weights/files/json.h>
#include <weights/files/safetensors.h>

#include <c10/util/Exception.h>

#include <map>
#include <memory>
#include <unordered_map>
#include <utility>
#include <vector>

namespace torch_attention {

namespace {

/// The name of a file beside the index, and nowhere else.
void check_file_name(const std::string& name) {
  TORCH_CHECK(
      !name.empty() && name.front() != '.' &&
          name.find_first_of(std::string("/\\\0", 3)) == std::string::npos,
      "the index names the file \"",
      name,
      "\", expected one beside it");
}

void check_prefix(const nlohmann::json& map, const std::string& prefix) {
  std::vector<std::string> keys;
  for (const auto& [key, file] : map.items()) {
    if (starts_with(key, prefix)) {
      return;
    }
    keys.push_back(key);
  }
  TORCH_CHECK(
      false,
      format_text(
          "no key begins with the prefix \"{}\"; the file's keys: \"{}\"",
          prefix,
          fmt::join(keys, "\", \"")));
}

} // namespace

bool is_sharded_index(const Bytes& file) {
  return file.size > 0 && file.data[0] == '{';
}

WeightFile read_sharded(
    const Bytes& index,
    const std::string& folder,
    const std::string& prefix) {
  const auto json = parse_json(index);
  const auto map = json.find("weight_map");
  TORCH_CHECK(
      map != json.end() && map->is_object(),
      "the file is JSON, but no index of safetensors files: it has no "
      "\"weight_map\"");

  check_prefix(*map, prefix);
  WeightFile result;
  result.format = "sharded safetensors files";
  std::map<std::string, WeightFile> shards;
  std::unordered_map<std::string, std::string> shard_of;
  for (const auto& [key, file] : map->items()) {
    TORCH_CHECK(file.is_string(), "the index names no file for \"", key, "\"");
    const auto name = file.get<std::string>();
    check_file_name(name);
    if (!starts_with(key, prefix)) {
      continue;
    }
    auto shard = shards.find(name);
    if (shard == shards.end()) {
      const auto bytes = MappedFile::open(folder + name);
      try {
        shard = shards.emplace(name, read_safetensors(bytes)).first;
        result.mapped.push_back(bytes);
      } catch (const c10::Error& error) {
        TORCH_CHECK(false, "\"", name, "\": ", error.what_without_backtrace());
      }
    }
    const auto* tensor = shard->second.tensors.find(key);
    TORCH_CHECK(
        tensor != nullptr,
        "the index says that \"",
        name,
        "\" has the key \"",
        key,
        "\", but it has not");
    result.tensors.insert(key, *tensor);
    shard_of.emplace(key, name);
  }
  for (const auto& [name, shard] : shards) {
    for (const auto& item : shard.tensors) {
      const auto owner = shard_of.find(item.key());
      TORCH_CHECK(
          !starts_with(item.key(), prefix) ||
              (owner != shard_of.end() && owner->second == name),
          "\"",
          name,
          "\" has the key \"",
          item.key(),
          "\", which the index says is elsewhere");
    }
  }
  result.check = [shards = std::move(shards), shard_of = std::move(shard_of)](
                     const std::vector<std::string>& keys) {
    for (const auto& key : keys) {
      shards.at(shard_of.at(key)).check({key});
    }
  };
  return result;
}

} // namespace torch_attention
