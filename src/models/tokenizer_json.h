#pragma once

#include <auto_tokenizer.h>
#include <models/tokenizer_files.h>

#include <json_tree.h>

#include <string>

namespace torch_attention::models::detail {

/// How transformers opens a folder's tokenizer.
struct TokenizerConfig {
  /// `tokenizer_config.json`.
  std::string path;
  Json fields = Json::object();
  /// The class; empty if nothing names one, which then is BERT's.
  std::string tokenizer_class = {};

  /// Whether the class does what `tokenizer.json` says, and has no options of
  /// BERT.
  bool is_generic() const {
    return tokenizer_class == kGenericTokenizer;
  }
};

/// Reads the options of both kinds of files. Accents are removed where letters
/// become lower case, unless it is said otherwise.
WordOptions word_options_of(
    const Json& config,
    const char* lowercase,
    const char* ideographs,
    const std::string& path);

/// Throws c10::Error unless the parts of a `tokenizer.json` are those of BERT.
void check_tokenizer_types(const Json& tokenizer, const std::string& path);

/// Reads a `tokenizer.json` into `files`, which has the tokens that the class
/// puts around texts; the generic class goes by the file. Throws c10::Error if
/// it contradicts the configuration.
void read_tokenizer_json(
    const Json& tokenizer,
    const std::string& path,
    const TokenizerConfig& config,
    TokenizerFiles& files);

} // namespace torch_attention::models::detail
