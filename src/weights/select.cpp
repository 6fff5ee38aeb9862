#include <weights/select.h>

#include <check.h>
#include <format_text.h>
#include <weights/layouts/find.h>

#include <ATen/ops/empty.h>
#include <c10/util/Exception.h>

#include <algorithm>
#include <utility>

namespace torch_attention::weights {

using namespace files;
using namespace layouts;

namespace {

/// Returns the paths that contain `path`, for a `path` that lacks its beginning
/// or end.
std::vector<std::string> paths_around(
    const std::vector<std::string>& paths,
    const std::string& path) {
  std::vector<std::string> result;
  for (const auto& candidate : paths) {
    const auto dotted_candidate = format_text(".{}.", candidate);
    if (dotted_candidate.find(format_text(".{}.", path)) != std::string::npos) {
      result.push_back(candidate);
    }
  }
  return result;
}

} // namespace

std::string dotted(const std::string& prefix) {
  return prefix.empty() || prefix.back() == '.' ? prefix : prefix + ".";
}

WeightFile select_below(WeightFile file, const std::string& prefix) {
  auto start = dotted(prefix);
  TORCH_CHECK(file.why_empty.empty(), file.why_empty);
  TORCH_CHECK(!start.empty() || file.ambiguity.empty(), file.ambiguity);
  const auto in_root = dotted(file.root) + start;
  if (has_keys_below(file.tensors, in_root)) {
    start = in_root;
  }
  if (start.empty()) {
    return file;
  }
  if (file.all_keys.empty()) {
    file.all_keys = file.tensors.keys();
  }
  check_prefix(
      has_keys_below(file.tensors, start), dotted(prefix), whole_keys(file));

  WeightFile part;
  part.path = std::move(file.path);
  part.format = std::move(file.format);
  part.mapped = std::move(file.mapped);
  part.quantization.method = std::move(file.quantization.method);
  part.stored = std::move(file.stored);
  part.root = std::move(file.root);
  part.start = start;
  part.all_keys = std::move(file.all_keys);
  part.foreign = std::move(file.foreign);
  for (const auto& [name, text] : file.metadata) {
    if (starts_with(name, start)) {
      part.metadata.emplace(name.substr(start.size()), text);
    }
  }
  for (const auto& item : file.tensors) {
    if (starts_with(item.key(), start)) {
      part.tensors.insert(item.key().substr(start.size()), item.value());
    }
  }
  for (const auto& key : file.others) {
    if (starts_with(key, start)) {
      part.others.push_back(key.substr(start.size()));
    }
  }
  for (auto& [key, reason] : file.unreadable) {
    if (starts_with(key, start)) {
      part.unreadable.emplace_back(key.substr(start.size()), std::move(reason));
    }
  }
  for (const auto& key : file.quantization.refused) {
    if (starts_with(key, start)) {
      part.quantization.refused.insert(key.substr(start.size()));
    }
  }
  part.check = [start, check = std::move(file.check)](
                   const std::vector<std::string>& keys) {
    std::vector<std::string> full;
    for (const auto& key : keys) {
      full.push_back(start + key);
    }
    check(full);
  };
  return part;
}

WeightFile read_below(
    const std::string& path,
    const std::string& prefix,
    const ReadRules& rules) {
  return select_below(read_weight_file(path, dotted(prefix), rules), prefix);
}

std::vector<std::string> whole_keys(const WeightFile& file) {
  const auto& keys =
      file.all_keys.empty() ? file.tensors.keys() : file.all_keys;
  const auto root = dotted(file.root);
  std::vector<std::string> result;
  for (const auto& key : keys) {
    if (starts_with(key, root)) {
      result.push_back(key.substr(root.size()));
    }
  }
  return result;
}

std::vector<std::string> attention_paths(const std::vector<std::string>& keys) {
  // Only names matter here, so all tensors are the same placeholder.
  const auto any = at::empty({1, 1});
  StateDict names;
  for (const auto& key : keys) {
    if (!names.contains(key)) {
      names.insert(key, any);
    }
  }
  std::vector<std::string> paths;
  for (const auto& attention : find_attention(names)) {
    paths.push_back(attention.scope);
  }
  return paths;
}

void check_prefix(
    bool has_keys,
    const std::string& start,
    const std::vector<std::string>& keys) {
  if (has_keys) {
    return;
  }
  const auto paths = attention_paths(keys);
  const auto path = start.substr(0, start.empty() ? 0 : start.size() - 1);
  const auto around = paths_around(paths, path);
  const auto known = [&] {
    if (keys.empty()) {
      return std::string("the file has no tensors");
    }
    if (!around.empty()) {
      return format_text("use {}", prefix_choice(around));
    }
    return paths.empty()
        ? format_text("the file's keys: {}", quoted_list(keys))
        : format_text("the file has attention at {}", quoted_list(paths));
  }();
  TORCH_ATTENTION_CHECK(
      false,
      "no key begins with the prefix \"{}\"; {}",
      shortened(start, 200),
      known);
}

std::vector<std::string> prefixes_with(
    const WeightFile& file,
    const std::vector<std::string>& keys) {
  std::vector<std::string> prefixes;
  if (keys.empty()) {
    return prefixes;
  }
  const auto end = "." + keys.front();
  for (const auto& item : file.tensors) {
    const auto& key = item.key();
    if (key.size() <= end.size() || !ends_with(key, end)) {
      continue;
    }
    const auto prefix = key.substr(0, key.size() - end.size());
    const bool all =
        std::all_of(keys.begin(), keys.end(), [&](const std::string& wanted) {
          return file.tensors.contains(format_text("{}.{}", prefix, wanted));
        });
    if (all) {
      prefixes.push_back(prefix);
    }
  }
  return prefixes;
}

} // namespace torch_attention::weights
