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
  /// A text, or a number of another kind than `kInteger` as it is written.
  std::string_view text;
  /// A number of 64 bits; also 0 and 1 for a bool.
  int64_t integer = 0;
};

/// "text", for a message.
std::string_view kind_text(JsonValue::Kind kind);

/// The keys on the way to a value; "" for the elements of a list.
using JsonPath = std::vector<std::string>;

/// Calls `visit` with each value of a JSON text of a weights file, objects and
/// lists before what is in them. Nothing is kept, so that a text costs no more
/// memory than its keys. Throws c10::Error if it is no JSON, is nested deeper
/// than any of these files, or has a key twice.
void read_json(
    const Bytes& bytes,
    const std::function<void(const JsonPath&, const JsonValue&)>& visit);

} // namespace torch_attention::weights::files
