#pragma once

#include <string>
#include <vector>

namespace torch_attention::tools {

/// The parts of a tokenizer.json's decoder: how tokens are written there.
struct TokenDecoder {
  /// Each byte is a letter of GPT-2's alphabet ("ByteLevel").
  bool has_byte_letters = false;
  /// A byte may be a token, such as <0x0A> ("ByteFallback").
  bool has_byte_tokens = false;
  /// "▁" stands for a space ("Replace").
  bool has_replaced_spaces = false;
};

/// Returns the bytes that a token of a tokenizer.json stands for, as Python's
/// `tokenizers` decode it.
std::string bytes_of_token(
    const std::string& token,
    const TokenDecoder& decoder);

/// Returns the tokens of the bytes from 0 to 255: the letters of GPT-2's
/// alphabet in their order, or <0x00> to <0xFF>.
std::vector<std::string> tokens_of_bytes(bool as_letters);

} // namespace torch_attention::tools
