#pragma once

#include <json_tree.h>

#include <cstdint>
#include <string>

/// The JSON files of tokenizers and sentence encoders.
namespace torch_attention::models {

/// Returns an object. Throws c10::Error if the file is missing or holds none.
Json read_json(const std::string& path);

/// Returns the value of a text that was made of the file at `path`.
Json parse_json(const std::string& text, const std::string& path);

/// Returns a value of any kind. Throws c10::Error if the file is missing or is
/// no JSON.
Json read_json_value(const std::string& path);

bool is_there(const std::string& path);

/// Returns `read_json`, or an empty object without a file.
Json read_json_if_there(const std::string& path);

/// Return a field of an object, or `otherwise` if it is absent or null. Throw
/// c10::Error, which names the file at `path`, for a field of another type.
bool json_field(
    const Json& object,
    const std::string& name,
    bool otherwise,
    const std::string& path);
int64_t json_field(
    const Json& object,
    const std::string& name,
    int64_t otherwise,
    const std::string& path);
std::string json_field(
    const Json& object,
    const std::string& name,
    const std::string& otherwise,
    const std::string& path);
/// A text would become a bool.
std::string json_field(
    const Json& object,
    const std::string& name,
    const char* otherwise,
    const std::string& path);

} // namespace torch_attention::models
