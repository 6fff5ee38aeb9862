#include <tools/model_fields.h>

#include <config_file.h>
#include <format_text.h>
#include <torch_attention/weights/pretrained.h>

#include <c10/util/Exception.h>

#include <algorithm>
#include <exception>

namespace torch_attention::tools {

ModelFields::ModelFields(const std::string& folder)
    : path_(folder + "/config.json"), fields_(read_config_file(path_)) {
  if (auto text = fields_.get("text_config").as_object()) {
    path_ += ": text_config";
    fields_ = *std::move(text);
  }
}

template <typename T>
std::optional<T> ModelFields::value_of(
    const std::string& field,
    const char* expected,
    std::optional<T> (Json::*as)() const) const {
  const auto& value = fields_.get(field);
  if (value.is_null()) {
    return std::nullopt;
  }
  auto result = (value.*as)();
  TORCH_CHECK(
      result,
      format_text("expected {} as \"{}\" of \"{}\"", expected, field, path_));
  return result;
}

std::optional<int64_t> ModelFields::integer(const std::string& field) const {
  return value_of(field, "an integer", &Json::as_integer);
}

std::optional<double> ModelFields::number(const std::string& field) const {
  return value_of(field, "a number", &Json::as_number);
}

std::optional<bool> ModelFields::flag(const std::string& field) const {
  return value_of(field, "true or false", &Json::as_flag);
}

std::optional<std::string> ModelFields::text(const std::string& field) const {
  return value_of(field, "a text", &Json::as_text);
}

std::string model_type_in(const std::string& path) {
  try {
    return read_config_file(path + "/config.json")
        .get("model_type")
        .as_text()
        .value_or("");
  } catch (const std::exception&) {
    return "";
  }
}

bool is_known_type(const std::string& model_type) {
  const auto known = pretrained_model_types();
  return std::binary_search(known.begin(), known.end(), model_type);
}

} // namespace torch_attention::tools
