#pragma once

#include <nlohmann/json.hpp>

#include <cstdint>
#include <optional>
#include <set>
#include <string>

namespace torch_attention::weights::pretrained {

/// A `config.json`, which knows which of its fields were asked for. Errors name
/// the file and the field.
class ModelConfig {
 public:
  /// `path` is the file, or the folder that it lies in.
  explicit ModelConfig(const std::string& path);

  const std::string& path() const {
    return path_;
  }

  /// Whether the field is there, be it null.
  bool contains(const std::string& field) const {
    return fields_.contains(field);
  }

  /// Whether the field is there and a text.
  bool is_text(const std::string& field) const {
    return contains(field) && fields_.at(field).is_string();
  }

  /// Whether one of the functions below was called for the field.
  bool was_asked(const std::string& field) const {
    return seen_.count(field) > 0;
  }

  /// Whether the field is there and not null.
  bool has(const std::string& field);

  /// The value of a field, or none if it is absent or null. Throws c10::Error
  /// if it is of another type.
  std::optional<int64_t> integer(const std::string& field);
  std::optional<double> number(const std::string& field);
  std::optional<bool> flag(const std::string& field);
  std::optional<std::string> text(const std::string& field);

  /// The value of a field that has to be there.
  int64_t required_integer(const std::string& field);

  /// Element `index` of a list of texts or numbers; none if there is no list.
  std::optional<std::string> text_at(const std::string& field, int64_t index);
  std::optional<int64_t> integer_at(const std::string& field, int64_t index);

  /// An object in it, or an empty one. Its fields are not looked after.
  nlohmann::json object(const std::string& field);

  /// The field counts as asked for.
  void ignore(const std::string& field);

  /// Throws c10::Error that names a field which was not asked for, and by its
  /// name changes attention.
  void check_no_more(const std::string& model_type) const;

 private:
  const nlohmann::json* find(const std::string& field);
  const nlohmann::json* find_at(const std::string& field, int64_t index);

  std::string path_;
  nlohmann::json fields_;
  std::set<std::string> seen_;
};

} // namespace torch_attention::weights::pretrained
