#include <models/json_fields.h>

#include <check.h>
#include <config_file.h>
#include <regular_file.h>

#include <sys/stat.h>

#include <optional>
#include <sstream>

namespace torch_attention::models {

namespace {

// Larger than the tokenizers of WordPiece: one of 500,000 pieces has 13 million
// bytes.
constexpr ConfigLimits kLimits{/*bytes=*/100'000'000, /*values=*/2'000'000};

/// Returns `read(field)`, or `otherwise` for a field that is absent or null.
template <typename T, typename Read>
T field_of(
    const Json& object,
    const std::string& name,
    const T& otherwise,
    const std::string& path,
    const char* expected,
    const Read& read) {
  const auto& field = object.get(name);
  if (field.is_null()) {
    return otherwise;
  }
  const std::optional<T> value = read(field);
  TORCH_ATTENTION_CHECK(
      value.has_value(),
      "expected {} as field \"{}\" of \"{}\", but got {}",
      expected,
      name,
      path,
      field.shown(60));
  return *value;
}

} // namespace

Json read_json(const std::string& path) {
  check_regular_file(path);
  return read_config_file(path, kLimits);
}

Json parse_json(const std::string& text, const std::string& path) {
  constexpr size_t kDeepest = 16;
  std::istringstream stream(text);
  return Json::parse(stream, path, kDeepest, kLimits.values);
}

Json read_json_value(const std::string& path) {
  check_regular_file(path);
  return read_json_file(path, kLimits);
}

bool is_there(const std::string& path) {
  struct stat status {};
  return ::stat(path.c_str(), &status) == 0;
}

Json read_json_if_there(const std::string& path) {
  return is_there(path) ? read_json(path) : Json::object();
}

bool json_field(
    const Json& object,
    const std::string& name,
    bool otherwise,
    const std::string& path) {
  return field_of(
      object, name, otherwise, path, "true or false", [](const Json& field) {
        return field.as_flag();
      });
}

int64_t json_field(
    const Json& object,
    const std::string& name,
    int64_t otherwise,
    const std::string& path) {
  return field_of(
      object, name, otherwise, path, "an integer", [](const Json& field) {
        return field.as_integer();
      });
}

std::string json_field(
    const Json& object,
    const std::string& name,
    const std::string& otherwise,
    const std::string& path) {
  return field_of(
      object, name, otherwise, path, "a text", [](const Json& field) {
        return field.as_text();
      });
}

std::string json_field(
    const Json& object,
    const std::string& name,
    const char* otherwise,
    const std::string& path) {
  return json_field(object, name, std::string(otherwise), path);
}

} // namespace torch_attention::models
