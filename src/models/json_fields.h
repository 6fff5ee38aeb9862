#pragma once

#include <format_text.h>

#include <c10/util/Exception.h>
#include <nlohmann/json.hpp>

#include <string>

/// The JSON files of a tokenizer.
namespace torch_attention::models {

/// Returns an object. Throws c10::Error if the file is missing or holds none.
nlohmann::json read_json(const std::string& path);

/// Returns a field of an object, or `otherwise` if it is absent or null.
/// Throws c10::Error that names the file and a field of another type.
template <typename T>
T json_field(
    const nlohmann::json& object,
    const std::string& name,
    const T& otherwise,
    const std::string& path) {
  const auto found = object.find(name);
  if (found == object.end() || found->is_null()) {
    return otherwise;
  }
  try {
    return found->get<T>();
  } catch (const nlohmann::json::exception& error) {
    C10_THROW_ERROR(
        Error,
        format_text("field \"{}\" of \"{}\": {}", name, path, error.what()));
  }
}

} // namespace torch_attention::models
