#include <models/word_pieces.h>

#include <format_text.h>
#include <models/json_fields.h>
#include <regular_file.h>

#include <c10/util/Exception.h>

#include <sys/stat.h>

#include <algorithm>
#include <fstream>

namespace torch_attention::models::detail {

namespace {

bool is_there(const std::string& path) {
  struct stat status {};
  return ::stat(path.c_str(), &status) == 0;
}

/// Returns a token of a configuration: a text, or an object with its "content".
std::string token_of(
    const Json& config,
    const std::string& name,
    const std::string& otherwise,
    const std::string& path) {
  const auto& token = config.get(name);
  return token.is_object() ? json_field(token, "content", otherwise, path)
                           : json_field(config, name, otherwise, path);
}

/// Reads the options of both kinds of files. Accents are removed where letters
/// become lower case, unless it is said otherwise.
WordOptions word_options_of(
    const Json& config,
    const char* lowercase,
    const char* ideographs,
    const std::string& path) {
  WordOptions options;
  options.lowercase = json_field(config, lowercase, true, path);
  options.strip_accents =
      json_field(config, "strip_accents", options.lowercase, path);
  options.ideographs_apart = json_field(config, ideographs, true, path);
  return options;
}

/// Returns the type of a part of `tokenizer.json`.
std::string type_of(
    const Json& tokenizer,
    const char* part,
    const std::string& path) {
  const auto& found = tokenizer.get(part);
  return found.is_object() ? json_field(found, "type", "none", path) : "none";
}

} // namespace

bool WordPieces::are_in(const std::string& folder) {
  const auto path = folder + "/tokenizer.json";
  return is_there(path) ? type_of(read_json(path), "model", path) == "WordPiece"
                        : is_there(folder + "/vocab.txt");
}

WordPieces::WordPieces(const std::string& folder) : folder_(folder) {
  const auto config_path = folder + "/tokenizer_config.json";
  const auto config =
      is_there(config_path) ? read_json(config_path) : Json::object();
  for (const auto& [name, wanted] :
       {std::pair{"word_tokenizer_type", "basic"},
        std::pair{"subword_tokenizer_type", "wordpiece"}}) {
    const auto type = json_field(config, name, wanted, config_path);
    TORCH_CHECK(
        type == wanted,
        format_text(
            "expected a tokenizer with {} = {} in \"{}\", but got {}",
            name,
            wanted,
            config_path,
            type));
  }
  const auto token = [&](const char* name, const char* otherwise) {
    return token_of(config, name, otherwise, config_path);
  };
  auto unknown = token("unk_token", "[UNK]");
  const auto path = folder + "/tokenizer.json";
  if (is_there(path)) {
    const auto tokenizer = read_json(path);
    read_tokenizer(tokenizer, path);
    unknown = json_field(tokenizer.get("model"), "unk_token", unknown, path);
  } else {
    TORCH_CHECK(
        is_there(folder + "/vocab.txt"),
        format_text("expected tokenizer.json or vocab.txt in \"{}\"", folder));
    read_vocabulary(folder + "/vocab.txt");
    options_ = word_options_of(
        config, "do_lower_case", "tokenize_chinese_chars", config_path);
  }
  // A vocabulary of MPNet has BERT's tokens as well.
  TORCH_CHECK(
      config.contains("cls_token") || first_pieces_.count(U"<s>") == 0 ||
          first_pieces_.count(U"</s>") == 0,
      format_text(
          "expected cls_token and sep_token in \"{}\", since the vocabulary "
          "has [CLS] and <s>",
          config_path));
  const auto begin = token("cls_token", "[CLS]");
  const auto end = token("sep_token", "[SEP]");
  begin_ = id_of(begin);
  end_ = id_of(end);
  unknown_ = id_of(unknown);
  for (const auto& text :
       {begin,
        end,
        unknown,
        token("pad_token", "[PAD]"),
        token("mask_token", "[MASK]")}) {
    add_special(text);
  }
  // The longest that begins at a place is taken.
  std::sort(
      specials_.begin(), specials_.end(), [](const auto& a, const auto& b) {
        return a.text.size() > b.text.size();
      });
}

void WordPieces::read_tokenizer(
    const Json& tokenizer,
    const std::string& path) {
  const auto model_type = type_of(tokenizer, "model", path);
  const auto normalizer_type = type_of(tokenizer, "normalizer", path);
  const auto splitter_type = type_of(tokenizer, "pre_tokenizer", path);
  TORCH_CHECK(
      model_type == "WordPiece" && normalizer_type == "BertNormalizer" &&
          splitter_type == "BertPreTokenizer",
      format_text(
          "expected a tokenizer of BERT (BertNormalizer, BertPreTokenizer, "
          "WordPiece) in \"{}\", but got {}, {}, {}",
          path,
          normalizer_type,
          splitter_type,
          model_type));
  const auto& model = tokenizer.get("model");
  const auto next = json_field(model, "continuing_subword_prefix", "##", path);
  TORCH_CHECK(
      next == "##",
      format_text(
          "expected ## before pieces in \"{}\", but got {}", path, next));
  const auto longest =
      json_field(model, "max_input_chars_per_word", int64_t{100}, path);
  TORCH_CHECK(
      longest >= 0,
      format_text(
          "expected max_input_chars_per_word >= 0 in \"{}\", but got {}",
          path,
          longest));
  longest_word_ = static_cast<size_t>(longest);
  const auto& normalizer = tokenizer.get("normalizer");
  options_ =
      word_options_of(normalizer, "lowercase", "handle_chinese_chars", path);
  TORCH_CHECK(
      json_field(normalizer, "clean_text", true, path),
      format_text(
          "expected a tokenizer that removes control characters in \"{}\"",
          path));
  const auto& vocabulary = model.get("vocab");
  for (const auto& [text, id] : vocabulary.fields()) {
    add_piece(text, json_field(vocabulary, text, int64_t{-1}, path));
  }
  for (const auto& added : tokenizer.get("added_tokens").elements()) {
    const auto text = json_field(added, "content", "", path);
    TORCH_CHECK(
        !text.empty(),
        format_text("expected added tokens with a content in \"{}\"", path));
    TORCH_CHECK(
        !json_field(added, "normalized", false, path) &&
            !json_field(added, "single_word", false, path),
        format_text(
            "expected added tokens that are found as they stand in \"{}\", but "
            "\"{}\" is not",
            path,
            text));
    add_piece(text, json_field(added, "id", int64_t{-1}, path));
    add_special(text);
  }
}

void WordPieces::read_vocabulary(const std::string& path) {
  check_regular_file(path);
  std::ifstream file(path, std::ios::binary);
  TORCH_CHECK(file, format_text("cannot read \"{}\"", path));
  int64_t id = 0;
  for (std::string line; std::getline(file, line);) {
    if (!line.empty() && line.back() == '\r') {
      line.pop_back();
    }
    add_piece(line, id++);
  }
}

void WordPieces::add_piece(const std::string& text, int64_t id) {
  // Numbers are places of rows in a model's embedding.
  constexpr int64_t kMost = 1 << 24;
  TORCH_CHECK(
      id >= 0 && id < kMost,
      format_text(
          "the token \"{}\" in \"{}\" has the number {}", text, folder_, id));
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

int64_t WordPieces::id_of(const std::string& text) const {
  const auto found = first_pieces_.find(decode_utf8(text));
  TORCH_CHECK(
      found != first_pieces_.end(),
      format_text(
          "expected the token {} in the vocabulary of \"{}\"", text, folder_));
  return found->second;
}

void WordPieces::add_special(const std::string& text) {
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
