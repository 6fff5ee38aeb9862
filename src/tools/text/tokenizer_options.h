#pragma once

#include <tools/text/tokenizer_file.h>

#include <json_tree.h>

#include <cstdint>
#include <optional>
#include <string>
#include <unordered_map>

namespace torch_attention::tools {

/// The files next to a tokenizer.json by which transformers gives its tokens.
struct TokenizerOptions {
  /// `path` is that of the tokenizer.json, `tokenizer_` its content.
  TokenizerOptions(
      const std::string& path,
      const Json& tokenizer_,
      const TokenizerFile& file);

  /// Returns whether transformers takes all parts from tokenizer.json, and not
  /// only the tokens and merges.
  bool is_generic() const;

  /// Returns the text of a token: the value itself, or its "content".
  static std::optional<std::string> text_of(const Json& token);

  /// Returns one of the added_tokens of tokenizer.json, or null.
  const Json* find_added(const std::string& text) const;

  /// Returns the number of a token, or none if tokenizer.json lacks it.
  std::optional<int64_t> id_of(const std::string& text) const;

  [[noreturn]] void refuse(const std::string& expected, const std::string& got)
      const;

  /// The added_tokens of tokenizer.json by their texts; the first of equal
  /// ones.
  std::unordered_map<std::string, const Json*> added;

  std::string tokenizer_path;
  const Json& tokenizer;
  std::string folder;
  /// The path and fields of tokenizer_config.json.
  std::string path;
  Json config;
  /// Its fields and those of special_tokens_map.json, if that is read.
  Json fields;
  /// The field of `config` without which older files are read.
  static constexpr const char* kDecoder = "added_tokens_decoder";
  /// The class of transformers, empty if nothing names one.
  std::string tokenizer_class;
};

} // namespace torch_attention::tools
