#include <tools/model_fields.h>

#include <torch_attention/weights/pretrained.h>

#include <format_text.h>

#include <c10/util/Exception.h>

#include <sys/stat.h>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <cstring>
#include <exception>
#include <fstream>
#include <iterator>
#include <string>
#include <utility>

namespace torch_attention::tools {

namespace {

using nlohmann::json;

/// No configuration is larger.
constexpr int64_t kMostBytes = 4 * 1024 * 1024;
constexpr int kDeepest = 64;

/// Returns `text` with null in the places of Python's NaN, Infinity and
/// -Infinity, which JSON does not have.
std::string without_python_numbers(const std::string& text) {
  std::string result;
  bool in_string = false;
  for (size_t i = 0; i < text.size(); ++i) {
    if (!in_string) {
      bool is_number = false;
      for (const char* number : {"NaN", "Infinity", "-Infinity"}) {
        if (text.compare(i, std::strlen(number), number) == 0) {
          result += "null";
          i += std::strlen(number) - 1;
          is_number = true;
          break;
        }
      }
      if (is_number) {
        continue;
      }
    }
    if (text[i] == '"') {
      in_string = !in_string;
    } else if (text[i] == '\\' && in_string && i + 1 < text.size()) {
      result += text[i++];
    }
    result += text[i];
  }
  return result;
}

json read(const std::string& path) {
  struct stat status {};
  TORCH_CHECK(
      ::stat(path.c_str(), &status) == 0 && S_ISREG(status.st_mode) &&
          status.st_size <= kMostBytes,
      format_text(
          "expected a configuration of at most {} bytes in \"{}\"",
          kMostBytes,
          path));
  std::ifstream file(path, std::ios::binary);
  const std::string text{
      std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
  auto fields = json::parse(
      without_python_numbers(text),
      [](int depth, json::parse_event_t /*event*/, json& /*value*/) {
        return depth <= kDeepest;
      },
      /*allow_exceptions=*/false);
  TORCH_CHECK(
      fields.is_object(),
      format_text("expected a JSON object in \"{}\"", path));
  return fields;
}

} // namespace

ModelFields::ModelFields(const std::string& folder)
    : path_(folder + "/config.json") {
  auto fields = read(path_);
  const auto text = fields.find("text_config");
  if (text != fields.end() && text->is_object()) {
    path_ += ": text_config";
    auto inner = std::move(*text);
    fields = std::move(inner);
  }
  fields_ = std::make_shared<const json>(std::move(fields));
}

const json* ModelFields::find(const std::string& field) const {
  const auto found = fields_->find(field);
  return found == fields_->end() || found->is_null() ? nullptr : &*found;
}

namespace {

/// The value of a field; none without one.
template <typename T>
std::optional<T> value_of(
    const json* value,
    bool (json::*is)() const noexcept,
    const char* expected,
    const std::string& field,
    const std::string& path) {
  if (value == nullptr) {
    return std::nullopt;
  }
  TORCH_CHECK(
      (value->*is)(),
      format_text("expected {} as \"{}\" of \"{}\"", expected, field, path));
  return value->get<T>();
}

} // namespace

std::optional<int64_t> ModelFields::integer(const std::string& field) const {
  return value_of<int64_t>(
      find(field), &json::is_number_integer, "an integer", field, path_);
}

std::optional<double> ModelFields::number(const std::string& field) const {
  return value_of<double>(
      find(field), &json::is_number, "a number", field, path_);
}

std::optional<bool> ModelFields::flag(const std::string& field) const {
  return value_of<bool>(
      find(field), &json::is_boolean, "true or false", field, path_);
}

std::optional<std::string> ModelFields::text(const std::string& field) const {
  return value_of<std::string>(
      find(field), &json::is_string, "a text", field, path_);
}

std::string model_type_in(const std::string& path) {
  try {
    const auto fields = read(path + "/config.json");
    const auto type = fields.find("model_type");
    return type != fields.end() && type->is_string() ? type->get<std::string>()
                                                     : "";
  } catch (const std::exception&) {
    return "";
  }
}

bool is_known_type(const std::string& model_type) {
  const auto known = pretrained_model_types();
  return std::binary_search(known.begin(), known.end(), model_type);
}

} // namespace torch_attention::tools
