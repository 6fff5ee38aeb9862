#pragma once

#include <json_tree.h>

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace torch_attention::models {

/// The fields of a model's configuration. Errors name the file and the field.
class ModelFields {
 public:
  /// Reads the configuration of a folder or a GGUF file; for a model of text
  /// and images, only the part about text. Throws c10::Error if there is none,
  /// or if it is not a JSON object.
  explicit ModelFields(const std::string& folder);

  /// Reads `file` in `folder` in the same way.
  ModelFields(const std::string& folder, const std::string& file);

  const std::string& path() const {
    return path_;
  }

  /// Whether they are those of the text in a model of text and images or sound.
  bool are_of_part() const {
    return are_of_part_;
  }

  /// Returns false for a field that is absent, and true for null.
  bool contains(const std::string& field) const {
    return fields_.contains(field);
  }

  /// Return the value of a field, or none if it is absent or null. Throw
  /// c10::Error if it has another type.
  std::optional<int64_t> integer(const std::string& field) const;
  std::optional<double> number(const std::string& field) const;
  std::optional<bool> flag(const std::string& field) const;
  std::optional<std::string> text(const std::string& field) const;

  /// Return the value of a field, or `otherwise` if it is absent. Throw
  /// c10::Error if it is null, which transformers refuses, too, or has another
  /// type.
  int64_t integer(const std::string& field, int64_t otherwise) const;
  double number(const std::string& field, double otherwise) const;
  std::string text(const std::string& field, const char* otherwise) const;

  /// Returns `text`. Throws c10::Error unless `activate` knows it.
  std::string activation(const std::string& field, const char* otherwise) const;

  /// Throws c10::Error unless the field is absent, or this size of a
  /// tensor in the folder's files.
  void check_size(const std::string& field, int64_t in_files) const;

  /// Returns the values of a list, or the one of a field without a list.
  std::optional<std::vector<int64_t>> integers(const std::string& field) const;

 private:
  ModelFields(std::string path, Json fields);

  void check_no_null(const std::string& field) const;

  template <typename T>
  std::optional<T> value_of(
      const std::string& field,
      const char* expected,
      std::optional<T> (Json::*as)() const) const;

  std::string path_;
  Json fields_;
  bool are_of_part_ = false;
};

} // namespace torch_attention::models
