#include <torch_attention/models/word_piece.h>

#include <format_text.h>
#include <models/word_pieces.h>

#include <c10/util/Exception.h>

namespace torch_attention::models {

WordPiece::WordPiece(const std::string& folder)
    : pieces_(std::make_shared<detail::WordPieces>(folder)) {}

bool WordPiece::is_in(const std::string& folder) {
  return detail::WordPieces::are_in(folder);
}

std::vector<int64_t> WordPiece::encode(
    const std::string& text,
    std::optional<int64_t> max_length) const {
  TORCH_CHECK(
      max_length.value_or(2) >= 2,
      format_text(
          "expected a max_length of 2 tokens or more, but got {}",
          max_length.value_or(2)));
  auto ids = pieces_->encode(text);
  if (max_length && static_cast<int64_t>(ids.size()) > *max_length) {
    ids.resize(static_cast<size_t>(*max_length));
    ids.back() = pieces_->end();
  }
  return ids;
}

std::vector<std::string> WordPiece::words(const std::string& text) const {
  std::vector<std::string> words;
  for (const auto& word : pieces_->words(decode_utf8(text))) {
    words.push_back(encode_utf8(word));
  }
  return words;
}

const std::string& WordPiece::piece(int64_t id) const {
  TORCH_CHECK(
      id >= 0 && id < vocab_size(),
      format_text(
          "expected a token from 0 to {}, but got {}", vocab_size() - 1, id));
  return pieces_->pieces()[static_cast<size_t>(id)];
}

int64_t WordPiece::vocab_size() const {
  return static_cast<int64_t>(pieces_->pieces().size());
}

} // namespace torch_attention::models
