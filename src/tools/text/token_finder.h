#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <vector>

namespace torch_attention::tools {

/// A token that was found in a text, or the text between such tokens.
struct TextPart {
  std::string text;
  std::optional<int64_t> token = std::nullopt;
};

/// Finds tokens in texts as they stand: the first one, and of those that begin
/// there the longest.
class TokenFinder {
 public:
  /// The first of several equal texts counts. An empty one is never found.
  void add(const std::string& text, int64_t id);

  /// Returns the tokens in a text and what is between them, all not empty.
  std::vector<TextPart> split(std::string_view text) const;

 private:
  struct Match {
    size_t begin;
    size_t size;
    int64_t id;
  };

  std::optional<Match> find(std::string_view text) const;

  std::map<std::string, int64_t, std::less<>> ids_;
  /// The numbers of bytes of tokens, and with which bytes they begin.
  std::set<size_t, std::greater<>> sizes_;
  std::array<bool, 256> begins_{};
};

} // namespace torch_attention::tools
