#pragma once

#include <string>

namespace torch_attention::tools {

/// How a tokenizer.json changes texts before it cuts them: its "normalizer".
struct TextNormalizer {
  /// Texts are brought to Unicode's normal form C.
  bool has_nfc = false;
  /// "▁" is put before texts ("Prepend").
  bool has_prefix_space = false;
  /// "▁" stands for a space ("Replace").
  bool has_replaced_spaces = false;

  /// Returns what becomes of a text, which is in UTF-8.
  std::string apply(const std::string& text) const;
};

} // namespace torch_attention::tools
