#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

namespace torch_attention {

/// A value of a JSON text.
struct JsonValue {
  enum class Kind { kObject, kList, kText, kInteger, kReal, kBool, kNull };

  Kind kind = Kind::kNull;
  /// A text, or a number that is not a `kInteger`, as it is written.
  std::string_view text;
  /// An integer of 64 bits; 0 or 1 for a bool.
  int64_t integer = 0;
  /// The value of a number that is not a `kInteger`.
  double real = 0;
};

/// Throws c10::Error if the value is of another kind. The message says what was
/// expected: "a text as the dtype".
void check_kind(
    const JsonValue& value,
    JsonValue::Kind kind,
    std::string_view expected);

/// The keys on the way to a value; "" for the elements of a list.
using JsonPath = std::vector<std::string>;

using JsonVisitor = std::function<void(const JsonPath&, const JsonValue&)>;

/// The rules that differ between kinds of text.
struct JsonRules {
  /// How the message of an error begins.
  std::string problem;
  /// Reads what Python's json reads beyond JSON: NaN, Infinity and -Infinity,
  /// as
  /// {"__float__":"NaN"} and so on, as `transformers` 5 writes them; and keys
  /// that come twice, all of which are visited.
  bool is_python = false;
};

/// Calls `visit` with each value of a JSON text; objects and lists come before
/// their contents. Keeps nothing but keys, so that a text costs no more memory
/// than these. Throws c10::Error if the text is not JSON, is nested deeper than
/// any file that is read, or has a key
/// twice.
void read_json(
    std::string_view text,
    const JsonVisitor& visit,
    const JsonRules& rules = {});

} // namespace torch_attention
