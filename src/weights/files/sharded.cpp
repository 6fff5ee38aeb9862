#include <format_text.h>
#include <weights/files/safetensors.h>
#include <weights/files/sharded_index.h>
#include <weights/read.h>
#include <weights/select.h>

#include <check.h>

#include <c10/util/Exception.h>

#include <map>
#include <memory>
#include <set>
#include <unordered_map>
#include <utility>
#include <vector>

namespace torch_attention::weights::files {

namespace {

std::vector<std::string> keys_of(const std::vector<IndexEntry>& entries) {
  std::vector<std::string> keys;
  keys.reserve(entries.size());
  for (const auto& entry : entries) {
    keys.push_back(entry.key);
  }
  return keys;
}

WeightFile read_shard(const std::string& name, const Bytes& bytes) {
  try {
    TORCH_CHECK(!is_sharded_index(bytes), "the file is an index, too");
    return read_weight_bytes(bytes);
  } catch (const c10::Error& error) {
    TORCH_ATTENTION_CHECK(
        false, "\"{}\": {}", name, error.what_without_backtrace());
  }
}

/// Returns the texts of the headers that do not differ.
std::map<std::string, std::string> common_metadata(
    const std::map<std::string, WeightFile>& shards) {
  std::map<std::string, std::string> common;
  std::set<std::string> differing;
  for (const auto& [name, shard] : shards) {
    for (const auto& [key, text] : shard.metadata) {
      if (common.emplace(key, text).first->second != text) {
        differing.insert(key);
      }
    }
  }
  for (const auto& key : differing) {
    common.erase(key);
  }
  return common;
}

} // namespace

bool is_sharded_index(const Bytes& file) {
  // The header length of a safetensors file may begin with this byte, too.
  return file.size > 0 && file.data[0] == '{' && !is_safetensors(file);
}

WeightFile read_sharded(
    const Bytes& index,
    const std::string& folder,
    const std::string& prefix) {
  const auto entries = read_index(index);
  WeightFile result;
  result.all_keys = keys_of(entries);
  std::map<std::string, WeightFile> shards;
  std::unordered_map<std::string, std::string> shard_of;
  // The reasons why tensors cannot be read, by shard and key.
  std::map<std::pair<std::string, std::string>, std::string> unreadable;
  for (const auto& [key, name] : entries) {
    if (!starts_with(key, prefix)) {
      continue;
    }
    auto shard = shards.find(name);
    if (shard == shards.end()) {
      const auto bytes = MappedFile::open(folder + name);
      shard = shards.emplace(name, read_shard(name, bytes)).first;
      result.mapped.push_back(bytes);
      for (const auto& [path, reason] : shard->second.unreadable) {
        unreadable.emplace(std::pair(name, path), reason);
      }
      result.stored.join(shard->second.stored);
      const auto& foreign = shard->second.foreign;
      result.foreign.insert(
          result.foreign.end(), foreign.begin(), foreign.end());
      result.format = format_text("sharded {}s", shard->second.format);
    }
    const auto* tensor = shard->second.tensors.find(key);
    if (tensor == nullptr) {
      const auto reason = unreadable.find({name, key});
      if (reason != unreadable.end()) {
        result.unreadable.emplace_back(key, reason->second);
        continue;
      }
    }
    TORCH_ATTENTION_CHECK(
        tensor != nullptr,
        "the index says that \"{}\" has the key \"{}\", but it has not",
        name,
        key);
    result.tensors.insert(key, *tensor);
    shard_of.emplace(key, name);
  }
  check_prefix(!shards.empty(), prefix, result.all_keys);
  for (const auto& [name, shard] : shards) {
    for (const auto& item : shard.tensors) {
      const auto owner = shard_of.find(item.key());
      TORCH_ATTENTION_CHECK(
          !starts_with(item.key(), prefix) ||
              (owner != shard_of.end() && owner->second == name),
          "\"{}\" has the key \"{}\", which the index says is elsewhere",
          name,
          item.key());
    }
  }
  result.metadata = common_metadata(shards);
  result.check_rest = [shards] {
    for (const auto& [name, shard] : shards) {
      shard.check_rest();
    }
  };
  result.check = [shards = std::move(shards), shard_of = std::move(shard_of)](
                     const std::vector<std::string>& keys) {
    // Once per shard, so that a record of several tensors is read once.
    std::map<std::string, std::vector<std::string>> keys_of_shard;
    for (const auto& key : keys) {
      keys_of_shard[shard_of.at(key)].push_back(key);
    }
    for (const auto& [name, its_keys] : keys_of_shard) {
      shards.at(name).check(its_keys);
    }
  };
  return result;
}

} // namespace torch_attention::weights::files
