#include <weights/lora_names.h>

#include <check.h>
#include <format_text.h>
#include <weights/text.h>

#include <algorithm>

namespace torch_attention::weights {

std::optional<std::string> LoraNames::find(const std::string& path) {
  auto found = find_shorter(path);
  if (!found) {
    found = find_longer(path);
  }
  if (!found) {
    return std::nullopt;
  }
  const auto both = std::min(found->size(), path.size());
  const std::pair difference{
      path.substr(0, path.size() - both),
      found->substr(0, found->size() - both)};
  TORCH_ATTENTION_CHECK(
      !difference_ || *difference_ == difference,
      "the adapter's \"{}\" would be \"{}\" in the file, but other modules have "
      "another beginning there",
      path,
      *found);
  difference_ = difference;
  return found;
}

bool LoraNames::has(const std::string& path) const {
  const auto start = path + ".";
  const auto next = keys_.lower_bound(start);
  return next != keys_.end() && starts_with(*next, start);
}

std::optional<std::string> LoraNames::find_shorter(
    const std::string& path) const {
  for (size_t begin = 0; begin != std::string::npos;) {
    auto rest = path.substr(begin);
    if (has(rest)) {
      return rest;
    }
    const auto dot = path.find('.', begin);
    begin = dot == std::string::npos ? dot : dot + 1;
  }
  return std::nullopt;
}

std::optional<std::string> LoraNames::find_longer(
    const std::string& path) const {
  std::set<std::string> longer;
  const auto inner = format_text(".{}.", path);
  for (const auto& key : keys_) {
    const auto at = key.find(inner);
    if (at != std::string::npos) {
      longer.insert(key.substr(0, at + inner.size() - 1));
    }
  }
  TORCH_ATTENTION_CHECK(
      longer.size() <= 1,
      "the adapter changes \"{}\", of which the file has several: {}",
      path,
      quoted_list({longer.begin(), longer.end()}));
  return longer.empty() ? std::nullopt : std::optional(*longer.begin());
}

} // namespace torch_attention::weights
