#pragma once

#include <json_tree.h>

#include <cstdint>
#include <optional>
#include <vector>

namespace torch_attention::tools {

/// The tokens that surround each text, such as one that begins it.
struct TokensAround {
  std::vector<int64_t> before;
  std::vector<int64_t> after;
};

/// Reads the "post_processor" of a tokenizer.json. Returns nothing for a kind
/// that is not known, and for two of them that add tokens, on which Python's
/// `tokenizers` fail.
std::optional<TokensAround> read_post_processor(const Json& part);

} // namespace torch_attention::tools
