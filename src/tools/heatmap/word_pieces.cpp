#include <tools/heatmap/word_pieces.h>

#include <c10/util/Exception.h>

#include <config_file.h>
#include <format_text.h>
#include <regular_file.h>
#include <tools/heatmap/unicode.h>

#include <sys/stat.h>
#include <utf8proc.h>

#include <algorithm>
#include <array>
#include <cstddef>
#include <fstream>
#include <optional>
#include <utility>

namespace torch_attention::tools {

namespace {

constexpr const char* kUnknown = "[UNK]";
constexpr std::array<const char*, 5> kSpecialTokens{
    "[CLS]",
    "[SEP]",
    "[MASK]",
    "[PAD]",
    kUnknown};

/// Longer words are unknown.
constexpr size_t kLongestWord = 100;

/// Categories "C*", without those that are white space here.
bool is_left_out(int32_t character) {
  if (character == '\t' || character == '\n' || character == '\r') {
    return false;
  }
  constexpr int32_t kReplacement = 0xFFFD;
  switch (utf8proc_category(character)) {
    case UTF8PROC_CATEGORY_CC:
    case UTF8PROC_CATEGORY_CF:
    case UTF8PROC_CATEGORY_CN:
    case UTF8PROC_CATEGORY_CO:
    case UTF8PROC_CATEGORY_CS:
      return true;
    default:
      return character == 0 || character == kReplacement;
  }
}

bool is_space(int32_t character) {
  switch (utf8proc_category(character)) {
    case UTF8PROC_CATEGORY_ZS:
    case UTF8PROC_CATEGORY_ZL:
    case UTF8PROC_CATEGORY_ZP:
      return true;
    default:
      return character == '\t' || character == '\n' || character == '\r';
  }
}

/// All ASCII that is no letter, number or space counts, as "$" does.
bool is_punctuation(int32_t character) {
  if ((character >= 33 && character <= 47) ||
      (character >= 58 && character <= 64) ||
      (character >= 91 && character <= 96) ||
      (character >= 123 && character <= 126)) {
    return true;
  }
  const auto category = utf8proc_category(character);
  return category >= UTF8PROC_CATEGORY_PC && category <= UTF8PROC_CATEGORY_PO;
}

/// The blocks of "CJK Unified Ideographs" and of their compatible forms. Those
/// of Korean, Hiragana and Katakana write words with spaces, or are not split.
bool is_chinese(int32_t character) {
  constexpr std::array<std::pair<int32_t, int32_t>, 8> kBlocks{
      {{0x4E00, 0x9FFF},
       {0x3400, 0x4DBF},
       {0x20000, 0x2A6DF},
       {0x2A700, 0x2B73F},
       {0x2B740, 0x2B81F},
       {0x2B820, 0x2CEAF},
       {0xF900, 0xFAFF},
       {0x2F800, 0x2FA1F}}};
  return std::any_of(kBlocks.begin(), kBlocks.end(), [&](const auto& block) {
    return character >= block.first && character <= block.second;
  });
}

/// Returns the characters with accents as characters of their own, which are
/// left out.
std::vector<int32_t> without_accents(const std::vector<int32_t>& characters) {
  std::string text;
  for (const auto character : characters) {
    append_utf8(text, character);
  }
  constexpr auto kOptions =
      static_cast<utf8proc_option_t>(UTF8PROC_DECOMPOSE | UTF8PROC_STABLE);
  const auto decompose = [&](std::vector<int32_t>& result) {
    return utf8proc_decompose(
        reinterpret_cast<const utf8proc_uint8_t*>(text.data()),
        static_cast<utf8proc_ssize_t>(text.size()),
        result.data(),
        static_cast<utf8proc_ssize_t>(result.size()),
        kOptions);
  };
  std::vector<int32_t> result;
  const auto size = decompose(result);
  TORCH_INTERNAL_ASSERT(size >= 0);
  result.resize(static_cast<size_t>(size));
  TORCH_INTERNAL_ASSERT(decompose(result) == size);
  result.erase(
      std::remove_if(
          result.begin(),
          result.end(),
          [](int32_t character) {
            return utf8proc_category(character) == UTF8PROC_CATEGORY_MN;
          }),
      result.end());
  return result;
}

/// Returns the first special token in a text, and where it is.
std::optional<std::pair<size_t, const char*>> find_special(
    std::string_view text) {
  std::optional<std::pair<size_t, const char*>> first;
  for (const auto* token : kSpecialTokens) {
    const auto at = text.find(token);
    if (at != std::string_view::npos && (!first || at < first->first)) {
      first = {at, token};
    }
  }
  return first;
}

/// Returns a flag of `tokenizer_config.json`; none if it is absent or null.
std::optional<bool> flag_of(
    const Json& config,
    const std::string& path,
    const char* name) {
  const auto& found = config.get(name);
  TORCH_CHECK(
      found.is_null() || found.as_flag(),
      format_text("expected true or false as \"{}\" of \"{}\"", name, path));
  return found.as_flag();
}

} // namespace

bool WordPieces::are_in(const std::string& folder) {
  struct stat status {};
  return ::stat((folder + "/vocab.txt").c_str(), &status) == 0;
}

WordPieces::WordPieces(const std::string& folder)
    : path_(folder + "/vocab.txt") {
  check_regular_file(path_);
  std::ifstream file(path_, std::ios::binary);
  TORCH_CHECK(file, format_text("cannot read \"{}\"", path_));
  for (std::string line; std::getline(file, line);) {
    if (!line.empty() && line.back() == '\r') {
      line.pop_back();
    }
    ids_[line] = static_cast<int64_t>(tokens_.size());
    tokens_.push_back(line);
  }
  id_of(kUnknown);

  const auto config_path = folder + "/tokenizer_config.json";
  struct stat status {};
  if (::stat(config_path.c_str(), &status) != 0) {
    return;
  }
  check_regular_file(config_path);
  const auto config = read_config_file(config_path);
  const auto flag = [&](const char* name, bool otherwise) {
    return flag_of(config, config_path, name).value_or(otherwise);
  };
  lowers_ = flag("do_lower_case", true);
  strips_accents_ = flag("strip_accents", lowers_);
  splits_chinese_ = flag("tokenize_chinese_chars", true);
}

int64_t WordPieces::id_of(const std::string& token) const {
  const auto found = ids_.find(token);
  TORCH_CHECK(
      found != ids_.end(),
      format_text("expected the token {} in \"{}\"", token, path_));
  return found->second;
}

std::string WordPieces::token(int64_t id) const {
  return id >= 0 && id < static_cast<int64_t>(tokens_.size())
      ? tokens_[static_cast<size_t>(id)]
      : std::to_string(id);
}

std::vector<int64_t> WordPieces::encode(const std::string& text) const {
  std::vector<int64_t> ids{id_of("[CLS]")};
  std::string_view rest = text;
  while (const auto special = find_special(rest)) {
    append_plain(rest.substr(0, special->first), ids);
    ids.push_back(id_of(special->second));
    rest.remove_prefix(
        special->first + std::string_view(special->second).size());
  }
  append_plain(rest, ids);
  ids.push_back(id_of("[SEP]"));
  return ids;
}

std::vector<int32_t> WordPieces::normalized(std::string_view text) const {
  std::vector<int32_t> characters;
  for (const auto character : characters_of(text)) {
    if (is_left_out(character)) {
      continue;
    }
    if (splits_chinese_ && is_chinese(character)) {
      characters.insert(characters.end(), {' ', character, ' '});
    } else {
      characters.push_back(is_space(character) ? ' ' : character);
    }
  }
  if (strips_accents_) {
    characters = without_accents(characters);
  }
  if (lowers_) {
    for (auto& character : characters) {
      character = utf8proc_tolower(character);
    }
  }
  return characters;
}

void WordPieces::append_plain(std::string_view text, std::vector<int64_t>& ids)
    const {
  std::vector<int32_t> word;
  const auto end_word = [&] {
    append_word(word, ids);
    word.clear();
  };
  for (const auto character : normalized(text)) {
    if (is_space(character)) {
      end_word();
    } else if (is_punctuation(character)) {
      end_word();
      append_word({character}, ids);
    } else {
      word.push_back(character);
    }
  }
  end_word();
}

void WordPieces::append_word(
    const std::vector<int32_t>& word,
    std::vector<int64_t>& ids) const {
  std::vector<int64_t> pieces;
  if (word.size() > kLongestWord) {
    ids.push_back(id_of(kUnknown));
    return;
  }
  for (size_t begin = 0; begin < word.size();) {
    // The longest piece of the vocabulary that the rest begins with.
    auto end = word.size();
    for (; end > begin; --end) {
      std::string piece = begin == 0 ? "" : "##";
      for (auto at = begin; at < end; ++at) {
        append_utf8(piece, word[at]);
      }
      const auto found = ids_.find(piece);
      if (found != ids_.end()) {
        pieces.push_back(found->second);
        break;
      }
    }
    if (end == begin) {
      ids.push_back(id_of(kUnknown));
      return;
    }
    begin = end;
  }
  ids.insert(ids.end(), pieces.begin(), pieces.end());
}

} // namespace torch_attention::tools
