#include <weights/select.h>

#include <format_text.h>
#include <weights/read.h>

#include <c10/util/Exception.h>

#include <algorithm>
#include <utility>

namespace torch_attention {

namespace {

constexpr size_t kMaxListed = 20;

/// The keys of the file, not more than can be read.
std::string list_keys(const WeightFile& file) {
  auto keys = file.tensors.keys();
  const auto count = keys.size();
  keys.resize(std::min(count, kMaxListed));
  auto text = format_text("\"{}\"", fmt::join(keys, "\", \""));
  if (count > kMaxListed) {
    text += format_text(" and {} more", count - kMaxListed);
  }
  return text;
}

} // namespace

std::string dotted(const std::string& prefix) {
  return prefix.empty() || prefix.back() == '.' ? prefix : prefix + ".";
}

WeightFile select_below(WeightFile file, const std::string& prefix) {
  auto start = dotted(prefix);
  TORCH_CHECK(!start.empty() || file.ambiguity.empty(), file.ambiguity);
  const auto in_root = dotted(file.root) + start;
  if (has_keys_below(file.tensors, in_root)) {
    start = in_root;
  }
  if (start.empty()) {
    return file;
  }
  TORCH_CHECK(
      has_keys_below(file.tensors, start),
      format_text(
          "no key begins with the prefix \"{}\"; the file's keys: {}",
          start,
          list_keys(file)));

  WeightFile part;
  part.format = std::move(file.format);
  part.mapped = std::move(file.mapped);
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

WeightFile read_below(const std::string& path, const std::string& prefix) {
  return select_below(read_weight_file(path, dotted(prefix)), prefix);
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

} // namespace torch_attention
