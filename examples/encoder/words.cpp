#include "words.h"

#include "unicode_tables.h"

#include <algorithm>
#include <array>
#include <unordered_map>

namespace encoder {

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

  /// Appends the character in lower case and without accents.
  void fold(char32_t c, std::u32string& out) const {
    constexpr char32_t kFirstSyllable = 0xAC00;
    constexpr char32_t kLastSyllable = 0xD7A3;
    if (c >= kFirstSyllable && c <= kLastSyllable) {
      // Korean syllables become letters (the Unicode Standard, section 3.12).
      const auto syllable = c - kFirstSyllable;
      out += 0x1100 + syllable / (21 * 28);
      out += 0x1161 + syllable / 28 % 21;
      if (syllable % 28 != 0) {
        out += 0x11A7 + syllable % 28;
      }
      return;
    }
    const auto found = folded_.find(c);
    if (found == folded_.end()) {
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
  Characters() : kinds_(kNumCodePoints, kLetter) {
    set(kIdeographs, kIdeograph);
    set(kRemoved, kRemove);
    set(kSpaces, kSpace);
    set(kPunctuation, kApart);
    set(kAccents, kAccent);
    set(kFixedAccents, kFixedAccent);
    for (const auto& marks : kMarkOrders) {
      std::fill(
          kinds_.begin() + marks.first,
          kinds_.begin() + marks.last + 1,
          static_cast<uint8_t>(kFirstMark + marks.order));
    }
    for (const auto& shift : kShifts) {
      for (auto c = shift.first; c <= shift.last; c += shift.step) {
        folded_[c] = {
            static_cast<char32_t>(static_cast<int32_t>(c) + shift.distance)};
      }
    }
    for (size_t i = 0; i + 1 < kValueRuns.size(); ++i) {
      const auto start = kValueRuns[i].start;
      for (auto k = start; k < kValueRuns[i + 1].start; ++k) {
        folded_[kValueRuns[i].first + (k - start)] = {kValues[k]};
      }
    }
    for (const auto& several : kSeveral) {
      std::copy_n(several.values, 3, folded_[several.first].begin());
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
  std::unordered_map<char32_t, std::array<char32_t, 3>> folded_;
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
void add_folded(char32_t c, Words& words, std::u32string& folded) {
  const auto& characters = Characters::get();
  folded.clear();
  characters.fold(c, folded);
  for (const auto part : folded) {
    const auto kind = characters.kind(part);
    if (kind == kApart) {
      words.add_apart(part);
    } else {
      words.add(part, kind);
    }
  }
}

/// Returns the number of bytes of the character that a byte begins, or 0.
int length_of(unsigned char byte) {
  if (byte < 0x80) {
    return 1;
  }
  if (byte >= 0xC2 && byte < 0xE0) {
    return 2;
  }
  if (byte >= 0xE0 && byte < 0xF0) {
    return 3;
  }
  return byte >= 0xF0 && byte < 0xF5 ? 4 : 0;
}

/// Tells whether a byte may come second. Others after a first one make
/// surrogates, characters beyond the last, or longer forms of shorter ones.
bool may_follow(unsigned char first, unsigned char second) {
  const auto lowest = first == 0xE0 ? 0xA0 : first == 0xF0 ? 0x90 : 0x80;
  const auto highest = first == 0xED ? 0x9F : first == 0xF4 ? 0x8F : 0xBF;
  return second >= lowest && second <= highest;
}

} // namespace

std::vector<std::u32string> split_words(
    const std::u32string& text,
    const WordOptions& options) {
  const auto& characters = Characters::get();
  Words words;
  std::u32string folded;
  for (const auto c : text) {
    const auto kind = characters.kind(c);
    if (kind == kRemove) {
      continue;
    }
    if (kind == kSpace) {
      words.end_word();
    } else if (kind == kIdeograph && options.ideographs_apart) {
      words.end_word();
      if (options.uncased) {
        add_folded(c, words, folded);
      } else {
        words.add(c, kLetter);
      }
      words.end_word();
    } else if (!options.uncased) {
      if (kind == kApart) {
        words.add_apart(c);
      } else {
        words.add(c, kLetter);
      }
    } else if (kind == kFixedAccent) {
      words.end_marks();
    } else if (kind != kAccent) {
      add_folded(c, words, folded);
    }
  }
  return words.take();
}

std::u32string decode_utf8(const std::string& bytes) {
  std::u32string text;
  text.reserve(bytes.size());
  const auto size = bytes.size();
  for (size_t i = 0; i < size;) {
    const auto first = static_cast<unsigned char>(bytes[i++]);
    const auto length = length_of(first);
    if (length == 1) {
      text += first;
      continue;
    }
    // As many bytes as fit are one error.
    auto c = static_cast<char32_t>(first & (0x7F >> length));
    auto missing = length == 0 ? 1 : length - 1;
    for (auto k = 1; k < length && i < size; ++k) {
      const auto next = static_cast<unsigned char>(bytes[i]);
      if (k == 1 ? !may_follow(first, next) : (next & 0xC0) != 0x80) {
        break;
      }
      c = c << 6 | (next & 0x3F);
      ++i;
      --missing;
    }
    text += missing == 0 ? c : kReplacement;
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

} // namespace encoder
