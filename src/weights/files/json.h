#pragma once

#include <weights/files/mapped_file.h>

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

namespace torch_attention::weights::files {

/// A value of a JSON text.
struct JsonValue {
  enum class Kind { kObject, kList, kText, kInteger, kReal, kBool, kNull };

  Kind kind = Kind::kNull;
  /// A text, or a number that is not a `kInteger`, as it is written.
  std::string_view text;
  /// An integer of 64 bits; 0 or 1 for a bool.
  int64_t integer = 0;
};

/// Returns the name of a kind for messages: "text".
std::string_view kind_text(JsonValue::Kind kind);

/// Throws c10::Error if the value is of another kind. The message says what was
/// expected: "a text as the dtype".
void check_kind(
    const JsonValue& value,
    JsonValue::Kind kind,
    std::string_view expected);

/// The keys on the way to a value; "" for the elements of a list.
using JsonPath = std::vector<std::string>;

/// Calls `visit` with each value of a JSON text of a weights file; objects and
/// lists come before their contents. Keeps nothing but keys, so that a text
/// costs no more memory than these. Throws c10::Error if the text is not JSON,
/// is nested deeper than any of these files, or has a key twice.
void read_json(
    const Bytes& bytes,
    const std::function<void(const JsonPath&, const JsonValue&)>& visit);

} // namespace torch_attention::weights::files
