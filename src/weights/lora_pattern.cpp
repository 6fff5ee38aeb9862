#include <weights/lora_pattern.h>

#include <check.h>
#include <format_text.h>

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace torch_attention::weights {

namespace {

/// For each position in the path, whether a match may be there.
using Positions = std::vector<bool>;

/// Characters of ASCII.
using Characters = std::array<bool, 128>;

bool is_digit(char c) {
  return c >= '0' && c <= '9';
}

bool is_letter(char c) {
  return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z');
}

bool is_word(char c) {
  return is_digit(c) || is_letter(c) || c == '_';
}

template <typename Predicate>
Characters characters_that(const Predicate& predicate) {
  Characters result{};
  for (size_t i = 0; i < result.size(); ++i) {
    result[i] = predicate(static_cast<char>(i));
  }
  return result;
}

bool any(const Positions& positions) {
  return std::find(positions.begin(), positions.end(), true) != positions.end();
}

/// Goes through the pattern with all positions in the path that the part before
/// can end at. Only whether it matches is asked, so nothing is ever tried
/// again, and what greedy and lazy repetitions prefer makes no difference.
class Matcher {
 public:
  Matcher(std::string_view pattern, std::string_view path)
      : pattern_(pattern), path_(path) {
    constexpr size_t kLongest = 4096;
    const auto is_known = [](std::string_view text) {
      return text.size() <= kLongest &&
          std::all_of(text.begin(), text.end(), [](char c) {
               return c >= ' ' && c <= '~';
             });
    };
    check(is_known(pattern) && is_known(path), "expected short texts of ASCII");
  }

  bool match() {
    Positions start(path_.size() + 1);
    start[0] = true;
    const auto ends = alternatives(start);
    check(at_ == pattern_.size(), "a parenthesis is closed but not opened");
    return ends.back();
  }

 private:
  static constexpr int kDeepest = 50;
  static constexpr int64_t kMostSteps = 20'000'000;
  static constexpr int64_t kMostTimes = 1000;

  /// Numbers of repetitions.
  struct Times {
    int64_t least = 1;
    int64_t most = 1;
  };

  void check(bool condition, const char* problem) const {
    TORCH_ATTENTION_CHECK(
        condition,
        "the regular expression \"{}\" is not understood at character {}: {}",
        shortened(pattern_, 200),
        at_ + 1,
        problem);
  }

  bool is_next(std::string_view text) const {
    return pattern_.substr(at_, text.size()) == text;
  }

  bool take(std::string_view text) {
    const bool found = is_next(text);
    at_ += found ? text.size() : 0;
    return found;
  }

  char take_character() {
    check(at_ < pattern_.size(), "it ends too early");
    return pattern_[at_++];
  }

  void count_steps() {
    steps_ += static_cast<int64_t>(path_.size()) + 1;
    check(steps_ <= kMostSteps, "it takes too long");
  }

  Positions alternatives(const Positions& from) {
    check(++depth_ <= kDeepest, "its groups are nested too deep");
    auto result = sequence(from);
    while (take("|")) {
      const auto other = sequence(from);
      unite(result, other);
    }
    --depth_;
    return result;
  }

  Positions sequence(Positions from) {
    count_steps();
    while (at_ < pattern_.size() && !is_next("|") && !is_next(")")) {
      from = repeated(from);
    }
    return from;
  }

  /// Matches an atom as often as the pattern says.
  Positions repeated(const Positions& from) {
    if (auto held = assertion(from)) {
      check(!is_quantifier(), "an assertion is repeated");
      return *std::move(held);
    }
    const auto begin = at_;
    auto next = atom(from);
    const auto times = take_times();
    const auto end = at_;
    auto result = times.least == 0 ? from : Positions(from.size());
    if (times.least <= 1 && times.most > 0) {
      unite(result, next);
    }
    for (int64_t count = 2; count <= times.most && any(next); ++count) {
      at_ = begin;
      next = atom(next);
      const bool is_new = count < times.least || unite(result, next);
      if (count >= times.least && !is_new) {
        break;
      }
    }
    at_ = end;
    return result;
  }

  /// Adds positions. Returns whether any is new.
  bool unite(Positions& all, const Positions& more) {
    count_steps();
    bool is_new = false;
    for (size_t i = 0; i < all.size(); ++i) {
      is_new = is_new || (more[i] && !all[i]);
      all[i] = all[i] || more[i];
    }
    return is_new;
  }

  bool is_quantifier() const {
    return is_next("*") || is_next("+") || is_next("?") || is_next("{");
  }

  Times take_times() {
    constexpr auto kAny = std::numeric_limits<int64_t>::max();
    Times times;
    if (!is_quantifier()) {
      return times;
    }
    switch (take_character()) {
      case '*':
        times = {0, kAny};
        break;
      case '+':
        times = {1, kAny};
        break;
      case '?':
        times = {0, 1};
        break;
      default:
        times.least = take_number().value_or(0);
        times.most = take(",") ? take_number().value_or(kAny) : times.least;
        check(
            pattern_[at_ - 1] != '{' && take("}") && times.least <= times.most,
            "expected numbers of repetitions in braces");
    }
    take("?"); // lazy
    check(!is_quantifier(), "a repetition is repeated");
    return times;
  }

  std::optional<int64_t> take_number() {
    std::optional<int64_t> number;
    while (at_ < pattern_.size() && is_digit(pattern_[at_])) {
      number = number.value_or(0) * 10 + (take_character() - '0');
      check(*number <= kMostTimes, "it has too many repetitions");
    }
    return number;
  }

  /// Keeps the positions at which an assertion holds; none if the pattern has
  /// no assertion here.
  std::optional<Positions> assertion(const Positions& from) {
    if (take("^")) {
      return kept(from, [](size_t i) { return i == 0; });
    }
    if (take("$")) {
      return kept(from, [this](size_t i) { return i == path_.size(); });
    }
    if (take("\\b")) {
      return kept(from, [this](size_t i) {
        return (i > 0 && is_word(path_[i - 1])) !=
            (i < path_.size() && is_word(path_[i]));
      });
    }
    if (is_next("(?=") || is_next("(?!")) {
      return looked_ahead(from);
    }
    return std::nullopt;
  }

  template <typename Predicate>
  Positions kept(const Positions& from, const Predicate& holds) {
    count_steps();
    auto result = from;
    for (size_t i = 0; i < result.size(); ++i) {
      result[i] = result[i] && holds(i);
    }
    return result;
  }

  Positions looked_ahead(const Positions& from) {
    const bool is_wanted = is_next("(?=");
    at_ += 3;
    const auto begin = at_;
    // Also finds the end where no position is left.
    alternatives(Positions(from.size()));
    const auto end = at_;
    auto result = from;
    for (size_t i = 0; i < from.size(); ++i) {
      if (from[i]) {
        Positions one(from.size());
        one[i] = true;
        at_ = begin;
        result[i] = any(alternatives(one)) == is_wanted;
      }
    }
    at_ = end;
    check(take(")"), "a parenthesis is not closed");
    return result;
  }

  /// Matches a group or a character once.
  Positions atom(const Positions& from) {
    if (!take("(")) {
      return after_one_of(from, take_characters());
    }
    check(take("?:") || !is_next("?"), "a group of this kind is not known");
    auto result = alternatives(from);
    check(take(")"), "a parenthesis is not closed");
    return result;
  }

  Positions after_one_of(const Positions& from, const Characters& characters) {
    count_steps();
    Positions result(from.size());
    for (size_t i = 0; i < path_.size(); ++i) {
      result[i + 1] = from[i] && characters[static_cast<size_t>(path_[i])];
    }
    return result;
  }

  Characters take_characters() {
    const auto c = take_character();
    if (c == '.') {
      return characters_that([](char) { return true; });
    }
    if (c == '[') {
      return take_class();
    }
    if (c == '\\') {
      return take_escape();
    }
    check(
        std::string_view("*+?{}]").find(c) == std::string_view::npos,
        "this character needs a backslash");
    return only(c);
  }

  static Characters only(char wanted) {
    return characters_that([&](char c) { return c == wanted; });
  }

  Characters take_escape() {
    const auto c = take_character();
    if (c == 'd') {
      return characters_that(is_digit);
    }
    if (c == 'w') {
      return characters_that(is_word);
    }
    check(!is_digit(c) && !is_letter(c), "an escape of this kind is not known");
    return only(c);
  }

  /// Takes the rest of "[a-z_]".
  Characters take_class() {
    const bool is_negated = take("^");
    Characters result{};
    check(!is_next("]"), "a class of characters is empty");
    while (!take("]")) {
      const auto c = take_character();
      check(c != '[', "a bracket in a class needs a backslash");
      auto more = c == '\\' ? take_escape() : only(c);
      if (is_next("-") && pattern_.substr(at_ + 1, 1) != "]") {
        check(c != '\\', "a range begins with an escape");
        take("-");
        const auto last = take_character();
        check(
            is_word(c) && is_word(last) && c <= last,
            "expected a range of letters or digits");
        more = characters_that([&](char x) { return x >= c && x <= last; });
      }
      for (size_t i = 0; i < result.size(); ++i) {
        result[i] = result[i] || more[i];
      }
    }
    if (is_negated) {
      for (auto& each : result) {
        each = !each;
      }
    }
    return result;
  }

  std::string_view pattern_;
  std::string_view path_;
  /// Where the pattern is read.
  size_t at_ = 0;
  int depth_ = 0;
  int64_t steps_ = 0;
};

} // namespace

bool matches_pattern(std::string_view pattern, std::string_view path) {
  return Matcher(pattern, path).match();
}

} // namespace torch_attention::weights
