#pragma once

#include <json_tree.h>

#include <cstdint>
#include <optional>
#include <string>

namespace torch_attention::tools {

/// The fields of a model's `config.json`. Errors name the file and the field.
class ModelFields {
 public:
  /// Reads the file in `folder`; for a model of text and images, only the part
  /// about text. Throws c10::Error if there is no file, or if it is not a JSON
  /// object.
  explicit ModelFields(const std::string& folder);

  const std::string& path() const {
    return path_;
  }

  /// Return the value of a field, or none if it is absent or null. Throw
  /// c10::Error if it has another type.
  std::optional<int64_t> integer(const std::string& field) const;
  std::optional<double> number(const std::string& field) const;
  std::optional<bool> flag(const std::string& field) const;
  std::optional<std::string> text(const std::string& field) const;

 private:
  template <typename T>
  std::optional<T> value_of(
      const std::string& field,
      const char* expected,
      std::optional<T> (Json::*as)() const) const;

  std::string path_;
  Json fields_;
};

/// Returns the `model_type` of the configuration in a folder; empty if there is
/// no readable one.
std::string model_type_in(const std::string& path);

/// Returns whether `attention_from_pretrained` and similar functions know a
/// type.
bool is_known_type(const std::string& model_type);

} // namespace torch_attention::tools
