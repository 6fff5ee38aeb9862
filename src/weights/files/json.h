#pragma once

#include <weights/files/mapped_file.h>

#include <nlohmann/json.hpp>

namespace torch_attention {

/// A JSON text of a weights file. Throws c10::Error if it is none, is nested
/// deeper than any of them, or has a key twice.
nlohmann::json parse_json(const Bytes& bytes);

} // namespace torch_attention
