#pragma once

#include <json_tree.h>

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace torch_attention::models::detail {

/// A token that is found in texts as it stands.
struct AddedToken {
  std::string text;
  /// The number that a file states.
  std::optional<int64_t> id = std::nullopt;
  /// The name of the field of a token that only the vocabulary may number,
  /// since the order of such fields is lost; empty for others.
  std::string field = {};
};

/// Tokens outside of the vocabulary's order.
struct AddedTokens {
  /// Reads `tokenizer_config.json`, whose fields are `config`, and
  /// `special_tokens_map.json` and `added_tokens.json` if it lacks
  /// "added_tokens_decoder". `listed` are the "added_tokens" of
  /// `tokenizer.json`. `tokenizer_class` decides which tokens there are if the
  /// files do not say so: none in the generic class. Throws c10::Error, which
  /// names the file, for tokens that are found in another way than as they
  /// stand.
  AddedTokens(
      const std::string& folder,
      Json config,
      const Json& listed,
      const std::string& tokenizer_class);

  /// In the order in which transformers numbers those without a number.
  std::vector<AddedToken> all;
  std::string begin;
  std::string end;
  std::string unknown;
  /// True if a file names `begin`.
  bool names_begin = false;
};

} // namespace torch_attention::models::detail
