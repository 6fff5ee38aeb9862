#include <models/words.h>

#include <models/character_tables.h>
#include <utf8.h>

#include <algorithm>
#include <array>
#include <string_view>
#include <unordered_map>

namespace torch_attention::models {

namespace {

constexpr char32_t kNumCodePoints = 0x110000;
constexpr char32_t kReplacement = 0xFFFD;

/// The kinds of characters, each treated in its own way.
enum Kind : uint8_t {
  kLetter,
  kSpace,
  kRemove,
  kApart,
  kIdeograph,
  kAccent,
  kFixedAccent,
  // Marks that stay: this, and their order.
  kFirstMark,
};

/// A `CharacterMap`, to look characters up in.
class CharacterLookup {
 public:
  explicit CharacterLookup(const CharacterMap& map) {
    for (const auto& shift : map.shifts) {
      for (auto c = shift.first; c <= shift.last; c += shift.step) {
        results_[c] = {
            static_cast<char32_t>(static_cast<int32_t>(c) + shift.distance)};
      }
    }
    for (size_t i = 0; i + 1 < map.runs.size(); ++i) {
      const auto start = map.runs[i].start;
      for (auto k = start; k < map.runs[i + 1].start; ++k) {
        results_[map.runs[i].first + (k - start)] = {map.values[k]};
      }
    }
    for (const auto& several : map.several) {
      std::copy_n(several.values, 3, results_[several.first].begin());
    }
  }

  /// Appends the characters that one becomes.
  void append(char32_t c, std::u32string& out) const {
    const auto found = results_.find(c);
    if (found == results_.end()) {
      out += c;
      return;
    }
    for (const auto value : found->second) {
      if (value != 0) {
        out += value;
      }
    }
  }

 private:
  std::unordered_map<char32_t, std::array<char32_t, 3>> results_;
};

/// The tables, to look characters up in.
class Characters {
 public:
  static const Characters& get() {
    static const Characters characters;
    return characters;
  }

  Kind kind(char32_t c) const {
    return static_cast<Kind>(kinds_[c]);
  }

  /// Appends the character without accents.
  void strip(char32_t c, std::u32string& out) const {
    constexpr char32_t kFirstSyllable = 0xAC00;
    constexpr char32_t kLastSyllable = 0xD7A3;
    if (c < kFirstSyllable || c > kLastSyllable) {
      stripped_.append(c, out);
      return;
    }
    // Korean syllables become letters (the Unicode Standard, section 3.12).
    const auto syllable = c - kFirstSyllable;
    out += 0x1100 + syllable / (21 * 28);
    out += 0x1161 + syllable / 28 % 21;
    if (syllable % 28 != 0) {
      out += 0x11A7 + syllable % 28;
    }
  }

  /// Appends the character in lower case.
  void lower(char32_t c, std::u32string& out) const {
    lowered_.append(c, out);
  }

 private:
  Characters()
      : kinds_(kNumCodePoints, kLetter),
        stripped_(stripped_characters()),
        lowered_(lowered_characters()) {
    set(ideographs(), kIdeograph);
    set(removed_characters(), kRemove);
    set(space_characters(), kSpace);
    set(punctuation(), kApart);
    set(accents(), kAccent);
    set(fixed_accents(), kFixedAccent);
    for (const auto& marks : mark_orders()) {
      std::fill(
          kinds_.begin() + marks.first,
          kinds_.begin() + marks.last + 1,
          static_cast<uint8_t>(kFirstMark + marks.order));
    }
  }

  void set(const std::vector<CodePointRange>& ranges, Kind kind) {
    for (const auto& range : ranges) {
      std::fill(
          kinds_.begin() + range.first,
          kinds_.begin() + range.last + 1,
          static_cast<uint8_t>(kind));
    }
  }

  std::vector<uint8_t> kinds_;
  CharacterLookup stripped_;
  CharacterLookup lowered_;
};

/// The words so far, and the one that grows.
class Words {
 public:
  void end_word() {
    if (!word_.empty()) {
      words_.push_back(std::move(word_));
      word_.clear();
    }
    first_mark_ = 0;
  }

  /// Adds a letter, or a mark at its place among those before it (the canonical
  /// order of Unicode).
  void add(char32_t c, Kind kind) {
    if (kind < kFirstMark) {
      word_ += c;
      end_marks();
      return;
    }
    const auto& characters = Characters::get();
    const auto place = std::upper_bound(
        word_.begin() + static_cast<std::ptrdiff_t>(first_mark_),
        word_.end(),
        kind,
        [&](Kind ours, char32_t other) {
          return ours < characters.kind(other);
        });
    word_.insert(place, c);
  }

  /// Lets no mark move to before here.
  void end_marks() {
    first_mark_ = word_.size();
  }

  void add_apart(char32_t c) {
    end_word();
    words_.emplace_back(1, c);
  }

  std::vector<std::u32string> take() {
    end_word();
    return std::move(words_);
  }

 private:
  std::vector<std::u32string> words_;
  std::u32string word_;
  size_t first_mark_ = 0;
};

/// Adds a character that is no space and stays.
void add_character(char32_t c, const WordOptions& options, Words& words) {
  const auto& characters = Characters::get();
  std::u32string stripped;
  if (options.strip_accents) {
    characters.strip(c, stripped);
  } else {
    stripped += c;
  }
  std::u32string result;
  for (const auto part : stripped) {
    if (options.lowercase) {
      characters.lower(part, result);
    } else {
      result += part;
    }
  }
  for (const auto part : result) {
    const auto kind = characters.kind(part);
    if (kind == kApart) {
      words.add_apart(part);
    } else {
      // Marks are ordered where letters come apart.
      words.add(part, options.strip_accents ? kind : kLetter);
    }
  }
}

} // namespace

std::vector<std::u32string> split_words(
    const std::u32string& text,
    const WordOptions& options) {
  const auto& characters = Characters::get();
  Words words;
  for (const auto c : text) {
    const auto kind = characters.kind(c);
    if (kind == kRemove) {
      continue;
    }
    if (kind == kSpace) {
      words.end_word();
    } else if (kind == kIdeograph && options.ideographs_apart) {
      words.end_word();
      add_character(c, options, words);
      words.end_word();
    } else if (options.strip_accents && kind == kFixedAccent) {
      words.end_marks();
    } else if (!options.strip_accents || kind != kAccent) {
      add_character(c, options, words);
    }
  }
  return words.take();
}

std::u32string decode_utf8(const std::string& bytes) {
  std::u32string text;
  text.reserve(bytes.size());
  for (std::string_view rest = bytes; !rest.empty();) {
    const auto character = first_character(rest);
    text += character.is_valid ? character.code : kReplacement;
    rest.remove_prefix(character.is_valid ? character.size : 1);
  }
  return text;
}

std::string encode_utf8(const std::u32string& text) {
  std::string bytes;
  for (const auto c : text) {
    const auto follow = c < 0x80 ? 0 : c < 0x800 ? 1 : c < 0x10000 ? 2 : 3;
    constexpr std::array<unsigned, 4> kFirst = {0, 0xC0, 0xE0, 0xF0};
    bytes += static_cast<char>(kFirst[follow] | c >> (6 * follow));
    for (auto k = follow - 1; k >= 0; --k) {
      bytes += static_cast<char>(0x80 | (c >> (6 * k) & 0x3F));
    }
  }
  return bytes;
}

} // namespace torch_attention::models
