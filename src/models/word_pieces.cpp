#include <models/word_pieces.h>

#include <algorithm>
#include <utility>

namespace torch_attention::models::detail {

WordPieces::WordPieces(const TokenizerFiles& files)
    : options_(files.words),
      longest_word_(files.longest_word),
      cuts_left_(files.cuts_left) {
  const auto continuing = decode_utf8(kContinuing);
  for (const auto& [text, id] : files.vocabulary) {
    add_piece(text, id);
    auto characters = decode_utf8(text);
    longest_piece_ = std::max(longest_piece_, characters.size());
    if (characters.size() > continuing.size() &&
        characters.compare(0, continuing.size(), continuing) == 0) {
      next_pieces_[characters.substr(continuing.size())] = id;
    }
    first_pieces_[std::move(characters)] = id;
  }
  for (const auto& [text, id] : files.specials) {
    add_piece(text, id);
    specials_.push_back({decode_utf8(text), id});
  }
  // The longest that begins at a place is taken.
  std::sort(
      specials_.begin(), specials_.end(), [](const auto& a, const auto& b) {
        return a.text.size() > b.text.size();
      });
  begin_ = id_of(files.begin);
  end_ = id_of(files.end);
  unknown_ = id_of(files.unknown);
}

const std::string* WordPieces::piece(int64_t id) const {
  const auto found = pieces_.find(id);
  return found == pieces_.end() ? nullptr : &found->second;
}

void WordPieces::add_piece(const std::string& text, int64_t id) {
  pieces_[id] = text;
  size_ = std::max(size_, id + 1);
}

/// `TokenizerFiles` has the token among the special ones or the pieces.
int64_t WordPieces::id_of(const std::string& text) const {
  const auto characters = decode_utf8(text);
  const auto found = std::find_if(
      specials_.begin(), specials_.end(), [&](const Special& special) {
        return special.text == characters;
      });
  return found == specials_.end() ? first_pieces_.at(characters) : found->id;
}

std::vector<int64_t> WordPieces::encode(
    const std::string& text,
    std::optional<int64_t> max_length) const {
  auto ids = encode(text);
  const auto size = static_cast<int64_t>(ids.size());
  const auto too_many = size - std::min(size, max_length.value_or(size));
  // Behind the token that begins the text, or before the one that ends it.
  const auto first = cuts_left_ ? ids.begin() + 1 : ids.end() - 1 - too_many;
  ids.erase(first, first + too_many);
  return ids;
}

std::vector<int64_t> WordPieces::encode(const std::string& text) const {
  const auto characters = decode_utf8(text);
  std::vector<int64_t> ids = {begin_};
  size_t begin = 0;
  for (size_t i = 0; i < characters.size();) {
    const auto* special = special_at(characters, i);
    if (special == nullptr) {
      ++i;
      continue;
    }
    append_words(characters.substr(begin, i - begin), ids);
    ids.push_back(special->id);
    i += special->text.size();
    begin = i;
  }
  append_words(characters.substr(begin), ids);
  ids.push_back(end_);
  return ids;
}

const WordPieces::Special* WordPieces::special_at(
    const std::u32string& text,
    size_t begin) const {
  for (const auto& special : specials_) {
    if (text[begin] == special.text[0] &&
        text.compare(begin, special.text.size(), special.text) == 0) {
      return &special;
    }
  }
  return nullptr;
}

void WordPieces::append_words(
    const std::u32string& text,
    std::vector<int64_t>& ids) const {
  for (const auto& word : words(text)) {
    append_pieces(word, ids);
  }
}

void WordPieces::append_pieces(
    const std::u32string& word,
    std::vector<int64_t>& ids) const {
  const auto before = ids.size();
  auto unknown = word.size() > longest_word_;
  for (size_t begin = 0; begin < word.size() && !unknown;) {
    const auto& pieces = begin == 0 ? first_pieces_ : next_pieces_;
    auto length = std::min(word.size() - begin, longest_piece_);
    auto found = pieces.end();
    for (; length > 0 && found == pieces.end(); --length) {
      found = pieces.find(word.substr(begin, length));
    }
    unknown = found == pieces.end();
    if (!unknown) {
      ids.push_back(found->second);
      begin += length + 1; // the loop went one further
    }
  }
  if (unknown) {
    ids.resize(before);
    ids.push_back(unknown_);
  }
}

} // namespace torch_attention::models::detail
