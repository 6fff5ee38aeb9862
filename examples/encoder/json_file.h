#pragma once

#include <c10/util/Exception.h>
#include <nlohmann/json.hpp>

#include <string>

/// The JSON files of a model.
namespace encoder {

bool is_file(const std::string& path);

/// Returns what a file holds. Throws c10::Error if it cannot be read.
std::string read_file(const std::string& path);

/// Returns an object. Throws c10::Error if the file is missing or holds none.
nlohmann::json read_json(const std::string& path);

/// Returns an object, an empty one if there is no such file.
nlohmann::json read_json_if_there(const std::string& path);

/// Returns an array. Throws c10::Error if the file is missing or holds none.
nlohmann::json read_json_array(const std::string& path);

/// Returns a field of an object, or `otherwise` if it is absent or null.
/// Throws c10::Error that names a field of another type.
template <typename T>
T field(
    const nlohmann::json& object,
    const std::string& name,
    const T& otherwise) {
  const auto found = object.find(name);
  if (found == object.end() || found->is_null()) {
    return otherwise;
  }
  try {
    return found->get<T>();
  } catch (const nlohmann::json::exception& error) {
    C10_THROW_ERROR(Error, c10::str("field ", name, ": ", error.what()));
  }
}

} // namespace encoder
