#pragma once

#include <support/temporary_folder.h>

#include <tools/text/text_parts.h>
#include <tools/text/token_bytes.h>
#include <tools/text/tokenizer_file.h>
#include <tools/text/tokens.h>

#include <c10/util/Exception.h>

#include <nlohmann/json.hpp>

#include <cstdint>
#include <fstream>
#include <optional>
#include <string>
#include <vector>

namespace torch_attention::testing {

/// Returns a vocabulary with a token for each byte.
inline nlohmann::json byte_vocabulary(bool as_letters) {
  auto vocabulary = nlohmann::json::object();
  for (const auto& token : tools::tokens_of_bytes(as_letters)) {
    vocabulary[token] = vocabulary.size();
  }
  return vocabulary;
}

/// A tokenizer.json of GPT-2's kind.
inline nlohmann::json gpt2_tokenizer() {
  return {
      {"model",
       {{"type", "BPE"},
        {"dropout", nullptr},
        {"continuing_subword_prefix", ""},
        {"vocab", byte_vocabulary(/*as_letters=*/true)},
        {"merges", nlohmann::json::array()}}},
      {"normalizer", nullptr},
      {"pre_tokenizer", {{"type", "ByteLevel"}, {"add_prefix_space", false}}},
      {"post_processor", {{"type", "ByteLevel"}}},
      {"decoder", {{"type", "ByteLevel"}}},
      {"added_tokens", nlohmann::json::array()}};
}

/// A tokenizer.json of Gemma's kind.
inline nlohmann::json gemma_tokenizer() {
  auto tokenizer = gpt2_tokenizer();
  tokenizer["model"]["vocab"] = byte_vocabulary(/*as_letters=*/false);
  tokenizer["model"]["byte_fallback"] = true;
  tokenizer["normalizer"] = nlohmann::json::parse(
      R"({"type": "Replace", "pattern": {"String": " "}, "content": "▁"})");
  tokenizer["pre_tokenizer"] = nlohmann::json::parse(
      R"({"type": "Split", "pattern": {"String": " "},
          "behavior": "MergedWithPrevious", "invert": false})");
  tokenizer["post_processor"] = nullptr;
  tokenizer["decoder"] = {{"type", "ByteFallback"}};
  return tokenizer;
}

inline nlohmann::json added_token(
    int64_t id,
    const std::string& content,
    bool is_normalized) {
  return {
      {"id", id},
      {"content", content},
      {"normalized", is_normalized},
      {"special", !is_normalized}};
}

/// A folder with a tokenizer.json.
class TokenizerFolder {
 public:
  explicit TokenizerFolder(const nlohmann::json& tokenizer) {
    write("tokenizer.json", tokenizer);
  }

  void write(const char* name, const nlohmann::json& value) const {
    std::ofstream(folder_.file(name)) << value;
  }

  tools::TokenizerFile read() const {
    return tools::read_tokenizer_file(folder_.file("tokenizer.json"));
  }

  /// Returns the message with which it is refused, or nothing.
  std::string refusal() const {
    try {
      read();
    } catch (const c10::Error& error) {
      return error.what_without_backtrace();
    }
    return "";
  }

  /// Returns the tokens of a text by the merges of the file.
  std::vector<int64_t> encode(
      const std::string& text,
      std::optional<int64_t> max_length = std::nullopt) const {
    return tools::open_tokens(folder_.path())->encode(text, max_length);
  }

 private:
  TemporaryFolder folder_;
};

inline tools::TokenizerFile read_tokenizer(const nlohmann::json& tokenizer) {
  return TokenizerFolder(tokenizer).read();
}

/// Returns the message with which a file is refused, or nothing.
inline std::string refusal_of(
    const nlohmann::json& tokenizer,
    const nlohmann::json& config = nullptr) {
  const TokenizerFolder folder(tokenizer);
  if (!config.is_null()) {
    folder.write("tokenizer_config.json", config);
  }
  return folder.refusal();
}

/// Returns the parts of a text, between "|", with the numbers of tokens in
/// place of their texts.
inline std::string shown_parts(
    const tools::TokenizerFile& file,
    const std::string& text) {
  std::string shown;
  for (const auto& part : tools::text_parts(file, text)) {
    shown += shown.empty() ? "" : "|";
    shown += part.token ? std::to_string(*part.token) : part.text;
  }
  return shown;
}

} // namespace torch_attention::testing
