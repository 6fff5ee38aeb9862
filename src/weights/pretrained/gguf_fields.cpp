#include <weights/pretrained/gguf_fields.h>

#include <check.h>
#include <weights/text.h>

#include <cmath>

namespace torch_attention::weights::pretrained {

template <typename T>
std::optional<T> GgufFields::single(
    const std::string& key,
    const char* expected,
    std::optional<T> value) {
  read_.insert(key);
  TORCH_ATTENTION_CHECK(
      !has(key) || (value && !header_.is_list(key)),
      "expected {} as \"{}\" of the metadata, but got {}",
      expected,
      key,
      header_.is_list(key) ? "a list" : "another value");
  return value;
}

std::optional<int64_t> GgufFields::integer(const std::string& key) {
  constexpr int64_t kMost = int64_t{1} << 31;
  const auto value = header_.integer(key);
  return single(
      key,
      "an integer from 0 to 2^31",
      value.value_or(0) <= kMost ? value : std::nullopt);
}

std::optional<double> GgufFields::number(const std::string& key) {
  return single(key, "a floating-point number", header_.number(key));
}

std::optional<bool> GgufFields::flag(const std::string& key) {
  return single(key, "a bool", header_.flag(key));
}

std::optional<std::string> GgufFields::text(const std::string& key) {
  const auto value = header_.text(key);
  return single(
      key, "a text", value ? std::optional(std::string(*value)) : std::nullopt);
}

std::string GgufFields::required_text(const std::string& key) {
  auto value = text(key);
  TORCH_ATTENTION_CHECK(
      value, "expected \"{}\" in the metadata, which lacks it", key);
  return *value;
}

int64_t GgufFields::required_size(const std::string& key) {
  const auto value = integer(key);
  TORCH_ATTENTION_CHECK(
      value, "expected \"{}\" in the metadata, which lacks it", key);
  TORCH_ATTENTION_CHECK(
      *value > 0, "expected \"{}\" of the metadata > 0, but got 0", key);
  return *value;
}

double GgufFields::required_positive(const std::string& key) {
  const auto value = number(key);
  TORCH_ATTENTION_CHECK(
      value, "expected \"{}\" in the metadata, which lacks it", key);
  TORCH_ATTENTION_CHECK(
      std::isfinite(*value) && *value > 0,
      "expected \"{}\" of the metadata > 0, but got {}",
      key,
      *value);
  return *value;
}

template <typename T, typename Element>
std::vector<T> GgufFields::list(
    const std::string& key,
    const char* expected,
    const Element& element) {
  read_.insert(key);
  std::vector<T> values;
  if (!has(key)) {
    return values;
  }
  bool fits = header_.is_list(key);
  for (uint64_t i = 0; fits && i < header_.length(key); ++i) {
    const auto value = element(i);
    fits = value.has_value();
    values.push_back(value.value_or(T()));
  }
  TORCH_ATTENTION_CHECK(
      fits,
      "expected {} as \"{}\" of the metadata, but got {}",
      expected,
      key,
      header_.is_list(key) ? "another list" : "another value");
  return values;
}

std::vector<std::string_view> GgufFields::texts(const std::string& key) {
  read_.insert(key);
  const auto found = header_.texts(key);
  TORCH_ATTENTION_CHECK(
      found || !has(key),
      "expected a list of texts as \"{}\" of the metadata",
      key);
  return found.value_or(std::vector<std::string_view>());
}

std::vector<int64_t> GgufFields::integers(const std::string& key) {
  return list<int64_t>(key, "a list of integers >= 0", [&](uint64_t i) {
    return header_.integer(key, i);
  });
}

std::vector<double> GgufFields::numbers(const std::string& key) {
  return list<double>(key, "a list of floating-point numbers", [&](uint64_t i) {
    return header_.number(key, i);
  });
}

std::vector<bool> GgufFields::flags(const std::string& key) {
  return list<bool>(
      key, "a list of bools", [&](uint64_t i) { return header_.flag(key, i); });
}

void GgufFields::check_all_read(const std::string& start) const {
  for (const auto key : header_.keys()) {
    TORCH_ATTENTION_CHECK(
        !starts_with(key, start) || read_.count(key) > 0,
        "the metadata has \"{}\": nothing is known of it for this "
        "architecture, and it may change the model",
        key);
  }
}

} // namespace torch_attention::weights::pretrained
