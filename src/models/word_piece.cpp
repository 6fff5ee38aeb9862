#include <torch_attention/models/word_piece.h>

#include <check.h>
#include <models/word_pieces.h>

#include <c10/util/Exception.h>

namespace torch_attention::models {

WordPiece::WordPiece(const std::string& folder)
    : pieces_(std::make_shared<detail::WordPieces>(
          detail::TokenizerFiles(folder))) {}

bool WordPiece::is_in(const std::string& folder) {
  try {
    const detail::TokenizerFiles files(folder);
    return true;
  } catch (const c10::Error&) {
    return false;
  }
}

std::vector<int64_t> WordPiece::encode(
    const std::string& text,
    std::optional<int64_t> max_length) const {
  TORCH_ATTENTION_CHECK(
      max_length.value_or(2) >= 2,
      "expected a max_length of 2 tokens or more, but got {}",
      max_length.value_or(2));
  return pieces_->encode(text, max_length);
}

std::vector<std::string> WordPiece::words(const std::string& text) const {
  std::vector<std::string> words;
  for (const auto& word : pieces_->words(decode_utf8(text))) {
    words.push_back(encode_utf8(word));
  }
  return words;
}

bool WordPiece::has(int64_t id) const {
  return pieces_->piece(id) != nullptr;
}

const std::string& WordPiece::piece(int64_t id) const {
  const auto* piece = pieces_->piece(id);
  TORCH_ATTENTION_CHECK(
      piece != nullptr,
      "expected a token from 0 to {} that the vocabulary has, but got {}",
      vocab_size() - 1,
      id);
  return *piece;
}

int64_t WordPiece::vocab_size() const {
  return pieces_->size();
}

} // namespace torch_attention::models
