#include <tools/text/merges.h>

#include <check.h>
#include <utf8.h>

#include <cstddef>
#include <cstdint>
#include <limits>
#include <string_view>
#include <unordered_map>
#include <utility>

namespace torch_attention::tools {

namespace {

/// The merges of a model, with tokens as their places in the vocabulary.
class Merges {
 public:
  Merges(const Json& model, const std::string& path) {
    for (const auto& [token, id] : model.get("vocab").fields()) {
      places_.emplace(token, static_cast<uint32_t>(places_.size()));
    }
    for (const auto& merge : model.get("merges").elements()) {
      add(merge, path);
    }
  }

  /// Returns whether the letters of a token become it, or some are no tokens:
  /// no text has those.
  bool make(std::string_view token) const {
    std::vector<uint32_t> parts;
    while (!token.empty()) {
      const auto size = first_character(token).size;
      const auto letter = places_.find(std::string(token.substr(0, size)));
      if (letter == places_.end()) {
        return true;
      }
      parts.push_back(letter->second);
      token.remove_prefix(size);
    }
    while (parts.size() > 1) {
      if (!merge_first(parts)) {
        return false;
      }
    }
    return true;
  }

 private:
  struct Merge {
    size_t rank = std::numeric_limits<size_t>::max();
    uint32_t result = 0;
  };

  static uint64_t key_of(uint32_t left, uint32_t right) {
    return (static_cast<uint64_t>(left) << 32U) | right;
  }

  /// Returns the two tokens of a merge: a list, or a text with a space.
  static std::pair<std::string, std::string> tokens_of(const Json& merge) {
    if (const auto text = merge.as_text()) {
      const auto space = text->find(' ');
      return space == std::string::npos
          ? std::pair<std::string, std::string>()
          : std::pair(text->substr(0, space), text->substr(space + 1));
    }
    const auto& two = merge.elements();
    return two.size() != 2
        ? std::pair<std::string, std::string>()
        : std::pair(
              two[0].as_text().value_or(""), two[1].as_text().value_or(""));
  }

  void add(const Json& merge, const std::string& path) {
    const auto [left, right] = tokens_of(merge);
    const auto first = places_.find(left);
    const auto second = places_.find(right);
    const auto both = places_.find(left + right);
    TORCH_ATTENTION_CHECK(
        first != places_.end() && second != places_.end() &&
            both != places_.end(),
        "\"{}\": expected two tokens that make a third in each of the merges, "
        "but got {}",
        path,
        merge.shown(60));
    merges_[key_of(first->second, second->second)] = {
        num_merges_++, both->second};
  }

  /// Makes the merge of the lowest rank. Returns whether there is one.
  bool merge_first(std::vector<uint32_t>& parts) const {
    Merge first;
    size_t at = 0;
    for (size_t i = 0; i + 1 < parts.size(); ++i) {
      const auto found = merges_.find(key_of(parts[i], parts[i + 1]));
      if (found != merges_.end() && found->second.rank < first.rank) {
        first = found->second;
        at = i;
      }
    }
    if (first.rank == Merge().rank) {
      return false;
    }
    parts[at] = first.result;
    parts.erase(parts.begin() + static_cast<std::ptrdiff_t>(at) + 1);
    return true;
  }

  std::unordered_map<std::string, uint32_t> places_;
  std::unordered_map<uint64_t, Merge> merges_;
  size_t num_merges_ = 0;
};

} // namespace

std::vector<std::string> tokens_without_merges(
    const Json& model,
    const std::string& path) {
  const Merges merges(model, path);
  std::vector<std::string> tokens;
  for (const auto& [token, id] : model.get("vocab").fields()) {
    if (!merges.make(token)) {
      tokens.push_back(token);
    }
  }
  return tokens;
}

} // namespace torch_attention::tools
