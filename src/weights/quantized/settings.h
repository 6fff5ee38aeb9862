#pragma once

#include <json_tree.h>

#include <cstdint>
#include <initializer_list>
#include <optional>
#include <string>
#include <utility>

namespace torch_attention::weights::quantized {

/// The fields of a configuration that describe quantization.
class Settings {
 public:
  /// Takes the object `quantization_config` or `compression_config`, an object
  /// that has one of them, a `quantize_config.json` of AutoGPTQ or a
  /// `quant_config.json` of AutoAWQ; null if there is none.
  explicit Settings(const Json* quantization);

  /// Returns whether there is a configuration of quantization.
  bool exist() const {
    return !fields_.fields().empty();
  }

  /// The method in lower case, such as "fp8"; "" without configuration, and
  /// "quantization" if there is one without a method that is known.
  const std::string& method() const {
    return method_;
  }

  const Json& get(const std::string& field) const {
    return fields_.get(field);
  }

  bool contains(const std::string& field) const {
    return fields_.contains(field);
  }

  /// Return the first of these fields that is not null; none if all are. Throw
  /// `Refused` if it is of another type.
  std::optional<int64_t> integer(
      std::initializer_list<const char*> fields) const;
  std::optional<bool> flag(const char* field) const;
  /// In lower case.
  std::optional<std::string> text(
      std::initializer_list<const char*> fields) const;

 private:
  Json fields_ = Json::object();
  std::string method_;
};

/// Returns the two positive integers of a list; none of any other value.
std::optional<std::pair<int64_t, int64_t>> two_positive(const Json& list);

/// Returns the text with small letters of ASCII.
std::string lower(std::string text);

/// Throws `Refused` unless the method is one of these, or there is no
/// configuration. `form` is what the tensors are.
void check_method(
    const Settings& settings,
    const char* form,
    std::initializer_list<const char*> methods);

} // namespace torch_attention::weights::quantized
