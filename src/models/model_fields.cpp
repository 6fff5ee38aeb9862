#include <models/model_fields.h>

#include <check.h>
#include <config_file.h>
#include <format_text.h>
#include <models/activation.h>
#include <models/model_config.h>

#include <c10/util/Exception.h>

#include <utility>

namespace torch_attention::models {

ModelFields::ModelFields(const std::string& folder)
    : ModelFields(model_config_path(folder), read_model_config(folder)) {}

ModelFields::ModelFields(const std::string& folder, const std::string& file)
    : ModelFields(folder + "/" + file, read_config_file(folder + "/" + file)) {}

ModelFields::ModelFields(std::string path, Json fields)
    : path_(std::move(path)), fields_(std::move(fields)) {
  if (auto text = fields_.get("text_config").as_object()) {
    // `transformers` takes these of the whole model first.
    for (const auto* field : {"eos_token_id", "tie_word_embeddings"}) {
      if (!fields_.get(field).is_null()) {
        text->set(field, fields_.get(field));
      }
    }
    // Two classes put it into a text_config that lacks it (models.json has what
    // they put there for attention).
    const auto type = fields_.get("model_type").as_text();
    const bool puts_eps = type == "glmasr" || type == "voxtral";
    if (puts_eps && !text->contains("rms_norm_eps")) {
      text->set("rms_norm_eps", Json(1e-5));
    }
    are_of_part_ = true;
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
  TORCH_ATTENTION_CHECK(
      result, "expected {} as \"{}\" of \"{}\"", expected, field, path_);
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

void ModelFields::check_no_null(const std::string& field) const {
  TORCH_ATTENTION_CHECK(
      !contains(field) || !fields_.get(field).is_null(),
      "expected a value as \"{}\" of \"{}\", but got null",
      field,
      path_);
}

int64_t ModelFields::integer(const std::string& field, int64_t otherwise)
    const {
  check_no_null(field);
  return integer(field).value_or(otherwise);
}

double ModelFields::number(const std::string& field, double otherwise) const {
  check_no_null(field);
  return number(field).value_or(otherwise);
}

std::string ModelFields::text(const std::string& field, const char* otherwise)
    const {
  check_no_null(field);
  return text(field).value_or(otherwise);
}

std::string ModelFields::activation(
    const std::string& field,
    const char* otherwise) const {
  auto name = text(field, otherwise);
  try {
    check_activation(name);
  } catch (const c10::Error& error) {
    C10_THROW_ERROR(
        Error,
        format_text(
            "{}, as \"{}\" of \"{}\"",
            error.what_without_backtrace(),
            field,
            path_));
  }
  return name;
}

void ModelFields::check_size(const std::string& field, int64_t in_files) const {
  const auto size = integer(field, in_files);
  TORCH_ATTENTION_CHECK(
      size == in_files,
      "expected {} as \"{}\" of \"{}\", by the tensors next to it, but got "
      "{}",
      in_files,
      field,
      path_,
      size);
}

std::optional<std::vector<int64_t>> ModelFields::integers(
    const std::string& field) const {
  const auto& value = fields_.get(field);
  if (!value.is_list()) {
    const auto single = integer(field);
    return single ? std::make_optional(std::vector<int64_t>{*single})
                  : std::nullopt;
  }
  std::vector<int64_t> integers;
  for (const auto& element : value.elements()) {
    const auto integer = element.as_integer();
    TORCH_ATTENTION_CHECK(
        integer, "expected integers as \"{}\" of \"{}\"", field, path_);
    integers.push_back(*integer);
  }
  return integers;
}

} // namespace torch_attention::models
