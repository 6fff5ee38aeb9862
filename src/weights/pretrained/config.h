#pragma once

#include <json_tree.h>

#include <cstdint>
#include <initializer_list>
#include <map>
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

  /// The object `field` in it, which has a configuration of its own, such as
  /// `text_config`, and the `architectures` of the whole. Its path is
  /// "config.json: text_config".
  ModelConfig nested(const std::string& field);

  const std::string& path() const {
    return path_;
  }

  /// Fields that are not there have the values that `transformers` gives them
  /// for this model, and some have other names in it: `hidden_size` is `n_embd`
  /// of GPT-2.
  void set_defaults_of(const std::string& model_type);

  /// Returns whether the model's class has the field: others ignore it.
  bool class_has(const std::string& field) const {
    return defaults_.contains(field);
  }

  /// The model's own name of a field.
  const std::string& name_of(const std::string& field) const;

  /// Returns the number of values in it.
  size_t num_values() const {
    return fields_.num_values();
  }

  /// Returns whether the field is there, be it null.
  bool contains(const std::string& field) const {
    return fields_.contains(field);
  }

  /// Returns whether the field is there and a text.
  bool is_text(const std::string& field) const {
    return fields_.get(field).is_text();
  }

  /// Returns whether the field is there and a number.
  bool is_number(const std::string& field) const {
    return fields_.get(field).is_number();
  }

  /// Returns whether one of the functions below was called for the field.
  bool was_asked(const std::string& field) const {
    return seen_.count(field) > 0;
  }

  /// Returns whether the field is there and not null.
  bool has(const std::string& field);

  /// The value of a field, or none if it is absent or null; a flag that is null
  /// is false. Throws c10::Error if it is of another type.
  std::optional<int64_t> integer(const std::string& field);
  std::optional<double> number(const std::string& field);
  std::optional<bool> flag(const std::string& field);
  std::optional<std::string> text(const std::string& field);

  /// The value of a field that has to be there.
  int64_t required_integer(const std::string& field);

  /// Element `index` of a list of texts or numbers; none if there is no list.
  std::optional<std::string> text_at(const std::string& field, int64_t index);
  std::optional<int64_t> integer_at(const std::string& field, int64_t index);
  std::optional<double> number_at(const std::string& field, int64_t index);

  /// An object in it, or an empty one. Its fields are not looked after.
  Json object(const std::string& field);

  /// The fields count as asked for.
  void ignore(const std::string& field);
  void ignore(std::initializer_list<const char*> fields);

  /// Takes a field out: the model does not read it.
  void forget(const std::string& field);

  /// Takes a field out of an object in it.
  void drop(const std::string& object, const std::string& field);

  /// Returns whether a list of numbers has this one.
  bool has_element(const std::string& field, int64_t value);

  /// Fields that `per_layer_config` has for this layer take the place of those
  /// of all layers.
  void take_layer(int64_t layer);

  /// The number of elements, if the field is there and a list.
  std::optional<int64_t> length(const std::string& field) const;

  /// Returns whether the field is there and a list that has this text.
  bool lists(const std::string& field, const std::string& text) const;

  /// Throws c10::Error unless `layer` is one of `count`.
  void check_layer(int64_t layer, int64_t count) const;

  /// Throws c10::Error that names a field which was not asked for, and by its
  /// name changes attention.
  void check_no_more(const std::string& model_type) const;

 private:
  ModelConfig(std::string path, Json fields);

  const Json* find_in_file(const std::string& field);
  const Json* find(const std::string& field);
  const Json* find_at(const std::string& field, int64_t index);

  std::string path_;
  Json fields_;
  Json defaults_ = Json::object();
  /// Names by those of other models.
  std::map<std::string, std::string> names_;
  std::set<std::string> seen_;
};

} // namespace torch_attention::weights::pretrained
