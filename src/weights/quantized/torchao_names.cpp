#include <weights/quantized/torchao_names.h>

#include <sstream>

#include <c10/util/Exception.h>

namespace torch_attention::weights::quantized {

namespace {

/// Returns the description; null for other texts.
Json parsed_description(const std::string& name, const std::string& text) {
  constexpr size_t kDeepest = 8;
  constexpr size_t kMostValues = 500;
  if (text.empty() || text.front() != '{') {
    return {};
  }
  std::istringstream stream(text);
  try {
    return Json::parse(stream, name, kDeepest, kMostValues);
  } catch (const c10::Error&) {
    // Another program's text, or a damaged one: then parts have no description.
    return {};
  }
}

} // namespace

TorchaoNames::TorchaoNames(const std::map<std::string, std::string>& metadata) {
  for (const auto& [name, text] : metadata) {
    auto description = parsed_description(name, text);
    const auto type = description.get("_type").as_text();
    if (type && *type != "Tensor") {
      descriptions_.emplace(name, std::move(description));
    }
  }
}

std::optional<FieldOfGroup> TorchaoNames::field_of(
    const std::string& key) const {
  if (empty()) {
    return std::nullopt;
  }
  const auto dot = key.rfind('.');
  const auto last = dot == std::string::npos ? 0 : dot + 1;
  const auto start = key.substr(0, last);
  const auto field = key.substr(last);
  if (descriptions_.count(key) > 0) {
    return FieldOfGroup{start, field, field};
  }
  if (field.empty() || field.front() != '_') {
    return std::nullopt;
  }
  // Names of parameters have underscores, too: the longest one counts.
  for (auto end = field.rfind('_'); end > 0; end = field.rfind('_', end - 1)) {
    auto parameter = field.substr(1, end - 1);
    if (descriptions_.count(start + parameter) > 0) {
      return FieldOfGroup{start, field, std::move(parameter)};
    }
  }
  return std::nullopt;
}

const Json* TorchaoNames::find(const std::string& name) const {
  const auto found = descriptions_.find(name);
  return found == descriptions_.end() ? nullptr : &found->second;
}

} // namespace torch_attention::weights::quantized
