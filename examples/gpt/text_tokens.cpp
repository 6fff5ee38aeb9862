#include "text_tokens.h"

#include <torch/types.h>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <fstream>

namespace gpt {

namespace {

class ByteTokens : public TextTokens {
 public:
  std::vector<int64_t> encode(const std::string& text) const override {
    std::vector<int64_t> tokens;
    for (const auto byte : text) {
      tokens.push_back(static_cast<unsigned char>(byte));
    }
    return tokens;
  }

  std::string decode(const std::vector<int64_t>& tokens) const override {
    std::string text;
    for (const auto token : tokens) {
      text.push_back(static_cast<char>(token));
    }
    return text;
  }
};

/// Stands for bytes that are no character, or not yet one.
const std::string kReplacement = "\xEF\xBF\xBD";

bool ends_with(const std::string& text, const std::string& end) {
  return text.size() >= end.size() &&
      text.compare(text.size() - end.size(), end.size(), end) == 0;
}

} // namespace

bool has_bytes_as_tokens(const std::string& folder) {
  std::ifstream file(folder + "/config.json");
  const auto config =
      nlohmann::json::parse(file, nullptr, /*allow_exceptions=*/false);
  return config.is_object() && config.contains("tokens") &&
      config["tokens"] == "bytes";
}

std::unique_ptr<TextTokens> open_tokens(const std::string& folder) {
  if (has_bytes_as_tokens(folder)) {
    return std::make_unique<ByteTokens>();
  }
  const auto path = folder + "/tokenizer.json";
  TORCH_CHECK(
      std::ifstream(path),
      "Expected a file ",
      path,
      " for --prompt: without it, give --prompt-ids");
  return open_genai_tokens(path);
}

std::string GrowingText::add(int64_t token) {
  all_.push_back(token);
  const auto text = tokens_.decode(all_);
  return ends_with(text, kReplacement) ? "" : take(text);
}

std::string GrowingText::finish() {
  return take(tokens_.decode(all_));
}

std::string GrowingText::take(const std::string& text) {
  const auto from = std::min(shown_, text.size());
  shown_ = text.size();
  return text.substr(from);
}

} // namespace gpt
