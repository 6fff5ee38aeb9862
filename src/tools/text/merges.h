#pragma once

#include <json_tree.h>

#include <cstddef>
#include <cstdint>
#include <limits>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

namespace torch_attention::tools {

/// The vocabulary and merges of a byte pair model (Sennrich et al. 2016), as
/// Python's `tokenizers` apply them.
class Merges {
 public:
  /// Reads the "model" of a tokenizer.json; `path` is for messages. Throws
  /// c10::Error unless each merge makes a token of the vocabulary.
  Merges(const Json& model, const std::string& path);

  /// Appends the tokens of a text that is one word, however long. Characters
  /// that are no tokens become those of their bytes, such as <0x0A>, which the
  /// vocabulary has to have.
  void append(std::string_view text, std::vector<int64_t>& ids) const;

  /// Returns the tokens that the merges do not make of their own letters: no
  /// text has those but with "ignore_merges". Tokens with letters that are no
  /// tokens are left out.
  std::vector<std::string> tokens_without_merges() const;

 private:
  /// A merge of two parts that are next to each other.
  struct Merge {
    size_t rank = 0;
    uint32_t result = 0;
  };

  /// A token by its place in the vocabulary.
  using Part = uint32_t;
  static constexpr Part kGone = std::numeric_limits<Part>::max();

  void add(const Json& merge, const std::string& path);
  /// Returns the place of a token, or kGone.
  Part part_of(const std::string& token) const;
  const Merge* merge_of(Part left, Part right) const;
  /// Makes the merge of the lowest rank, the first of equal ones, until there
  /// is none.
  std::vector<Part> merged(std::vector<Part> parts) const;

  std::unordered_map<std::string, Part> parts_;
  std::vector<int64_t> ids_;
  std::unordered_map<uint64_t, Merge> merges_;
  size_t num_merges_ = 0;
  bool ignores_merges_;
};

} // namespace torch_attention::tools
