#pragma once

#include <nlohmann/json.hpp>

#include <torch_attention/models/generate.h>

#include <cstdint>
#include <stdexcept>
#include <string>
#include <vector>

namespace serve {

/// A text to be continued.
struct Request {
  std::string id;
  std::vector<int64_t> prompt;
  /// How tokens are chosen, how many, and which of them end the text.
  torch_attention::models::GenerateOptions options;
  /// Texts that end it.
  std::vector<std::string> stop_texts;
};

/// An error of a line of input.
class RequestError : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

/// Returns the request of an object, whose `id` is a text. Texts are allowed if
/// the tokens of the model are bytes. Throws RequestError for fields that are
/// missing, unknown or of another type.
///
/// Does not know the model: tokens and lengths are to be checked.
Request read_request(const nlohmann::json& line, bool has_bytes_as_tokens);

/// Returns the tokens of a text: its bytes.
std::vector<int64_t> bytes_of(const std::string& text);

} // namespace serve
