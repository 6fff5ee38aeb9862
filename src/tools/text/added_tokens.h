#pragma once

#include <tools/text/text_normalizer.h>
#include <tools/text/token_finder.h>

#include <json_tree.h>

#include <string>
#include <vector>

namespace torch_attention::tools {

/// The "added_tokens" of a tokenizer.json, which are found in a text before the
/// rest is cut into others.
struct AddedTokens {
  /// Tokens that are found in the text as it is, and tokens that are then found
  /// in what the normalizer makes of the rest.
  TokenFinder raw;
  TokenFinder normalized;
  /// All of them as they are written in the file.
  TokenFinder written;
  /// Texts of those whose place depends on what is next to them ("lstrip",
  /// "rstrip", "single_word").
  std::vector<std::string> refused;
};

/// Reads them. Throws c10::Error if one has another number than Python's
/// `tokenizers` give it, whatever the file says.
AddedTokens read_added_tokens(
    const Json& tokenizer,
    const TextNormalizer& normalizer,
    const std::string& path);

} // namespace torch_attention::tools
