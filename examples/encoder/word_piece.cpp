#include "word_piece.h"

#include "json_file.h"

#include <algorithm>
#include <sstream>

namespace encoder {

namespace {

using nlohmann::json;

/// Returns a token of a configuration: a text, or an object with its "content".
std::string token(
    const json& config,
    const std::string& name,
    const std::string& otherwise) {
  const auto found = config.find(name);
  if (found != config.end() && found->is_object()) {
    return field(*found, "content", otherwise);
  }
  return field(config, name, otherwise);
}

/// Sets the options of both kinds of files. Accents are removed where letters
/// become lower case, unless it is said otherwise.
WordOptions word_options(
    const json& config,
    const char* lower_case,
    const char* ideographs,
    const std::string& path) {
  WordOptions options;
  options.uncased = field(config, lower_case, true);
  options.ideographs_apart = field(config, ideographs, true);
  TORCH_CHECK(
      field(config, "strip_accents", options.uncased) == options.uncased,
      path,
      ": expected a tokenizer that makes letters lower case and removes their "
      "accents, or does neither, but got one that does one of them");
  return options;
}

} // namespace

WordPiece::WordPiece(const std::string& folder) : folder_(folder) {
  const auto config = read_json_if_there(folder + "/tokenizer_config.json");
  auto unknown = token(config, "unk_token", "[UNK]");
  const auto path = folder + "/tokenizer.json";
  if (is_file(path)) {
    const auto tokenizer = read_json(path);
    read_tokenizer(tokenizer, path);
    unknown = field(tokenizer["model"], "unk_token", unknown);
  } else {
    TORCH_CHECK(
        is_file(folder + "/vocab.txt"),
        folder,
        ": expected tokenizer.json or vocab.txt");
    read_vocabulary(folder + "/vocab.txt");
    options_ = word_options(
        config,
        "do_lower_case",
        "tokenize_chinese_chars",
        folder + "/tokenizer_config.json");
  }
  // BERT's names, and those of MPNet.
  const auto begin = token(config, "cls_token", "[CLS]");
  const auto end = token(config, "sep_token", "[SEP]");
  begin_ = id_of(begin);
  end_ = id_of(end);
  unknown_ = id_of(unknown);
  for (const auto& text :
       {begin,
        end,
        unknown,
        token(config, "pad_token", "[PAD]"),
        token(config, "mask_token", "[MASK]")}) {
    add_special(text);
  }
  // The longest that begins at a place is taken.
  std::sort(
      specials_.begin(), specials_.end(), [](const auto& a, const auto& b) {
        return a.text.size() > b.text.size();
      });
}

void WordPiece::read_tokenizer(const json& tokenizer, const std::string& path) {
  const auto type = [&](const char* part) {
    const auto found = tokenizer.find(part);
    return found != tokenizer.end() && found->is_object()
        ? field<std::string>(*found, "type", "none")
        : "none";
  };
  TORCH_CHECK(
      type("model") == "WordPiece" && type("normalizer") == "BertNormalizer" &&
          type("pre_tokenizer") == "BertPreTokenizer",
      path,
      ": expected a tokenizer of BERT (BertNormalizer, BertPreTokenizer, "
      "WordPiece) but got ",
      type("normalizer"),
      ", ",
      type("pre_tokenizer"),
      ", ",
      type("model"));
  const auto& model = tokenizer["model"];
  const auto next =
      field<std::string>(model, "continuing_subword_prefix", "##");
  TORCH_CHECK(next == "##", path, ": expected ## before pieces but got ", next);
  longest_word_ = field<size_t>(model, "max_input_chars_per_word", 100);
  options_ = word_options(
      tokenizer["normalizer"], "lowercase", "handle_chinese_chars", path);
  TORCH_CHECK(
      field(tokenizer["normalizer"], "clean_text", true),
      path,
      ": expected a tokenizer that removes control characters");
  using Vocabulary = std::unordered_map<std::string, int64_t>;
  for (const auto& [text, id] : field<Vocabulary>(model, "vocab", {})) {
    add_piece(text, id);
  }
  for (const auto& added : field<json>(tokenizer, "added_tokens", {})) {
    const auto text = field<std::string>(added, "content", "");
    TORCH_CHECK(
        !field(added, "normalized", false) &&
            !field(added, "single_word", false),
        path,
        ": expected added tokens that are found as they stand, but \"",
        text,
        "\" is not");
    add_piece(text, field<int64_t>(added, "id", -1));
    add_special(text);
  }
}

void WordPiece::read_vocabulary(const std::string& path) {
  std::istringstream file(read_file(path));
  int64_t id = 0;
  for (std::string line; std::getline(file, line);) {
    if (!line.empty() && line.back() == '\r') {
      line.pop_back();
    }
    add_piece(line, id++);
  }
}

void WordPiece::add_piece(const std::string& text, int64_t id) {
  // Numbers are places of rows in a model's embedding.
  constexpr int64_t kMost = 1 << 24;
  TORCH_CHECK(
      id >= 0 && id < kMost,
      folder_,
      ": the token \"",
      text,
      "\" has the number ",
      id);
  const auto place = static_cast<size_t>(id);
  if (place >= pieces_.size()) {
    pieces_.resize(place + 1);
  }
  pieces_[place] = text;
  auto characters = decode_utf8(text);
  longest_piece_ = std::max(longest_piece_, characters.size());
  if (characters.size() > 2 && characters.compare(0, 2, U"##") == 0) {
    next_pieces_[characters.substr(2)] = id;
  }
  first_pieces_[std::move(characters)] = id;
}

int64_t WordPiece::id_of(const std::string& text) const {
  const auto found = first_pieces_.find(decode_utf8(text));
  TORCH_CHECK(
      found != first_pieces_.end(),
      folder_,
      ": expected a token ",
      text,
      " in the vocabulary");
  return found->second;
}

void WordPiece::add_special(const std::string& text) {
  auto characters = decode_utf8(text);
  const auto found = first_pieces_.find(characters);
  const auto known = std::any_of(
      specials_.begin(), specials_.end(), [&](const Special& special) {
        return special.text == characters;
      });
  if (found != first_pieces_.end() && !characters.empty() && !known) {
    specials_.push_back({std::move(characters), found->second});
  }
}

std::vector<int64_t> WordPiece::encode(
    const std::string& text,
    int64_t max_length) const {
  TORCH_CHECK(
      max_length >= 2, "Expected room for 2 tokens or more, not ", max_length);
  const auto characters = decode_utf8(text);
  std::vector<int64_t> ids = {begin_};
  size_t begin = 0;
  for (size_t i = 0; i < characters.size();) {
    const auto* special = special_at(characters, i);
    if (special == nullptr) {
      ++i;
      continue;
    }
    add_words(characters.substr(begin, i - begin), ids);
    ids.push_back(special->id);
    i += special->text.size();
    begin = i;
  }
  add_words(characters.substr(begin), ids);
  ids.resize(std::min(ids.size(), static_cast<size_t>(max_length) - 1));
  ids.push_back(end_);
  return ids;
}

const WordPiece::Special* WordPiece::special_at(
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

void WordPiece::add_words(const std::u32string& text, std::vector<int64_t>& ids)
    const {
  for (const auto& word : split_words(text, options_)) {
    add_pieces(word, ids);
  }
}

void WordPiece::add_pieces(
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

const std::string& WordPiece::piece(int64_t id) const {
  TORCH_CHECK(
      id >= 0 && id < vocab_size(),
      "Expected a token below ",
      vocab_size(),
      " but got ",
      id);
  return pieces_[static_cast<size_t>(id)];
}

int64_t WordPiece::vocab_size() const {
  return static_cast<int64_t>(pieces_.size());
}

} // namespace encoder
