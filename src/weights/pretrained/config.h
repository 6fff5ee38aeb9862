#pragma once

#include <json_tree.h>

#include <cstdint>
#include <initializer_list>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <vector>

namespace torch_attention::weights::pretrained {

/// A `config.json`, which records which of its fields were read. Errors name
/// the file and the field.
class ModelConfig {
 public:
  /// Reads the file `path`, a `config.json` or a GGUF file, or `config.json` in
  /// the folder `path`.
  explicit ModelConfig(const std::string& path);

  /// Returns the configuration in the object `field`, such as `text_config`,
  /// with the outer `architectures`. Its path is "config.json: text_config".
  ModelConfig nested(const std::string& field);

  const std::string& path() const {
    return path_;
  }

  /// Returns whether it is the metadata of a GGUF file.
  bool is_gguf() const {
    return is_gguf_;
  }

  /// Sets the values that missing fields have in `transformers` for this model,
  /// and the model's names of fields: GPT-2's `hidden_size` is `n_embd`.
  void set_defaults_of(const std::string& model_type);

  /// Sets fields that the file lacks.
  void add_missing(const Json& fields);

  /// Returns whether the model's class has a default for the field.
  bool class_has(const std::string& field) const {
    return defaults_.contains(field);
  }

  /// Returns the model's name of a field.
  const std::string& name_of(const std::string& field) const;

  /// Returns the number of values in the configuration.
  size_t num_values() const {
    return fields_.num_values();
  }

  /// Returns whether the field exists, even if it is null.
  bool contains(const std::string& field) const {
    return fields_.contains(field);
  }

  /// Returns whether the field is a string.
  bool is_text(const std::string& field) const {
    return fields_.get(field).is_text();
  }

  /// Returns whether the field is a number.
  bool is_number(const std::string& field) const {
    return fields_.get(field).is_number();
  }

  /// Returns whether one of the functions below read the field.
  bool was_read(const std::string& field) const {
    return seen_.count(field) > 0;
  }

  /// Returns whether the field or its default is not null.
  bool has(const std::string& field);

  /// Return the value or default of a field; none if there is neither or it is
  /// null, but false for a flag that is null. Throw c10::Error for other types.
  std::optional<int64_t> integer(const std::string& field);
  std::optional<double> number(const std::string& field);
  std::optional<bool> flag(const std::string& field);
  std::optional<std::string> text(const std::string& field);

  /// Returns the value of a field, and throws c10::Error without one.
  int64_t required_integer(const std::string& field);

  /// Return element `index` of a list of strings or numbers; none if there is
  /// no list.
  std::optional<std::string> text_at(const std::string& field, int64_t index);
  std::optional<int64_t> integer_at(const std::string& field, int64_t index);
  std::optional<double> number_at(const std::string& field, int64_t index);

  /// Returns element `index` of a list of lists of integers; empty if there is
  /// no list.
  std::vector<int64_t> integers_at(const std::string& field, int64_t index);

  /// Returns an object, or an empty one. Does not record which of its fields
  /// are read.
  Json object(const std::string& field);

  /// Marks fields as read.
  void ignore(const std::string& field);
  void ignore(std::initializer_list<const char*> fields);

  /// Removes a field that the model does not read.
  void forget(const std::string& field);

  /// Removes a field of an object.
  void drop(const std::string& object, const std::string& field);

  /// Returns whether a list of integers contains `value`.
  bool has_element(const std::string& field, int64_t value);

  /// Replaces fields by those that `per_layer_config` has for this layer.
  /// Throws c10::Error if there are any and the class of `model_type` does not
  /// read them.
  void take_layer(int64_t layer, const std::string& model_type);

  /// Returns the number of elements of a list; none for other values.
  std::optional<int64_t> length(const std::string& field);

  /// Returns whether the field is a list that contains this string.
  bool lists(const std::string& field, const std::string& text) const;

  /// Throws c10::Error unless `layer` is in [0, count).
  void check_layer(int64_t layer, int64_t count) const;

  /// Throws c10::Error for a field that was not read, and that may change
  /// attention by its name.
  void check_no_more(const std::string& model_type) const;

 private:
  ModelConfig(std::string path, Json fields);

  const Json* find_in_file(const std::string& field);
  const Json* find(const std::string& field);
  const Json* find_at(const std::string& field, int64_t index);

  std::string path_;
  bool is_gguf_ = false;
  Json fields_;
  Json defaults_ = Json::object();
  /// The model's names of fields, by their usual names.
  std::map<std::string, std::string> names_;
  std::set<std::string> seen_;
};

} // namespace torch_attention::weights::pretrained
