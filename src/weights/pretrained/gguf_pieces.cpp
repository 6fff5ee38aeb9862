// The pieces of SentencePiece in GGUF files, and the merges that make them.

#include <check.h>
#include <weights/pretrained/gguf_tokens.h>
#include <weights/text.h>

#include <nlohmann/json.hpp>

#include <algorithm>
#include <cmath>
#include <tuple>
#include <utility>

namespace torch_attention::weights::pretrained {

namespace {

/// The time for a piece is quadratic in its length. Those of SentencePiece have
/// 16 characters, unless it was told otherwise.
constexpr size_t kLongest = 1024;

struct ScoredMerge {
  double score = 0;
  size_t left = 0;
  size_t right = 0;
};

/// The pieces of SentencePiece, whose scores order the merges.
class ScoredPieces {
 public:
  /// Throws c10::Error unless each token has a score of byte pairs.
  explicit ScoredPieces(GgufTokens& tokens)
      : tokens_(tokens),
        scores_(tokens.fields().numbers(GgufTokens::key("scores"))),
        is_symbol_(tokens.size()) {
    TORCH_ATTENTION_CHECK(
        scores_.size() == tokens.size(),
        "expected {} elements of \"tokenizer.ggml.scores\", one for each "
        "token, but got {}",
        tokens.size(),
        scores_.size());
    tokens_.vocabulary();
    tokens_.set_control([&](size_t id) { return !pairs_of(id).empty(); });
    for (size_t i = 0; i < tokens.size(); ++i) {
      check(i);
    }
  }

  /// Makes symbols of the pieces that no two pieces make: converters wrote
  /// symbols that the user of SentencePiece had defined as normal pieces.
  void find_symbols(bool has_prefix) {
    std::vector<size_t> ids;
    for (size_t i = 0; i < tokens_.size(); ++i) {
      if (is_long(i)) {
        ids.push_back(i);
      }
    }
    std::stable_sort(ids.begin(), ids.end(), [&](size_t a, size_t b) {
      return tokens_.text(a).size() < tokens_.text(b).size();
    });
    for (const auto id : ids) {
      if (pairs_of(id).empty()) {
        set_symbol(id, has_prefix);
      }
    }
  }

  /// Returns the pairs, the best score first, as transformers orders them
  /// (`generate_merges`).
  nlohmann::json merges() {
    std::vector<ScoredMerge> merges;
    for (size_t i = 0; i < tokens_.size(); ++i) {
      for (const auto& merge : pairs_of(i)) {
        merges.push_back(merge);
      }
    }
    check_order();
    // Equal scores are those of one piece: its earlier parts come first.
    const auto characters = [&](size_t id) {
      return num_characters(tokens_.text(id)).value_or(0);
    };
    std::stable_sort(
        merges.begin(),
        merges.end(),
        [&](const ScoredMerge& a, const ScoredMerge& b) {
          return a.score != b.score
              ? a.score > b.score
              : std::tuple(characters(a.left), characters(a.right)) >
                  std::tuple(characters(b.left), characters(b.right));
        });
    auto written = nlohmann::json::array();
    for (const auto& merge : merges) {
      written.push_back(nlohmann::json::array(
          {tokens_.text(merge.left), tokens_.text(merge.right)}));
    }
    return written;
  }

 private:
  bool is_piece(size_t id) const {
    return !is_symbol_[id] &&
        (tokens_.type(id) == GgufTokenType::kNormal ||
         tokens_.type(id) == GgufTokenType::kUserDefined);
  }

  /// Returns whether it is a normal piece of at least two characters.
  bool is_long(size_t id) const {
    return tokens_.type(id) == GgufTokenType::kNormal &&
        num_characters(tokens_.text(id)).value_or(0) > 1;
  }

  void check(size_t id) const {
    const auto score = scores_[id];
    TORCH_ATTENTION_CHECK(
        std::isfinite(score),
        "expected finite numbers in \"tokenizer.ggml.scores\", but got {} for "
        "token {}",
        score,
        id);
    // The logarithms of Unigram's probabilities have fractions.
    TORCH_ATTENTION_CHECK(
        tokens_.type(id) != GgufTokenType::kNormal ||
            score == std::trunc(score),
        "expected whole numbers in \"tokenizer.ggml.scores\", as byte pairs of "
        "SentencePiece have, but got {} for token {}",
        score,
        id);
    TORCH_ATTENTION_CHECK(
        !is_piece(id) || tokens_.text(id).size() <= kLongest,
        "expected tokens of at most {} bytes in a tokenizer with scores, but "
        "got {} for token {}",
        kLongest,
        tokens_.text(id).size(),
        id);
  }

  /// Throws c10::Error if the file does not have the order of merges. Scores
  /// that some of the pieces share are those of SentencePiece.
  void check_order() const {
    std::optional<size_t> first;
    size_t count = 0;
    bool has_order = false;
    for (size_t i = 0; i < tokens_.size(); ++i) {
      if (is_long(i)) {
        first = first.value_or(i);
        ++count;
        has_order = has_order || scores_[i] != scores_[*first];
      }
    }
    TORCH_ATTENTION_CHECK(
        has_order || count < 2,
        "expected \"tokenizer.ggml.scores\" that order the merges of pieces, "
        "but got {} for all {} that are merged: convert the model with its "
        "tokenizer.model",
        first ? scores_[*first] : 0,
        count);
  }

  /// Returns the pairs of pieces that make a piece; none of another token.
  std::vector<ScoredMerge> pairs_of(size_t id) const {
    std::vector<ScoredMerge> pairs;
    const auto text = tokens_.text(id);
    if (!is_piece(id) || text.size() > kLongest) {
      return pairs;
    }
    for (size_t at = 1; at < text.size(); ++at) {
      const auto left = tokens_.find(std::string(text.substr(0, at)));
      if (!left || !is_piece(*left)) {
        continue;
      }
      const auto right = tokens_.find(std::string(text.substr(at)));
      if (right && is_piece(*right)) {
        pairs.push_back({scores_[id], *left, *right});
      }
    }
    return pairs;
  }

  void set_symbol(size_t id, bool has_prefix) {
    std::string text;
    for (auto rest = tokens_.text(id); !rest.empty();) {
      const bool is_space = starts_with(rest, kSpaceSign);
      text += is_space ? ' ' : rest.front();
      rest.remove_prefix(is_space ? kSpaceSign.size() : 1);
    }
    TORCH_ATTENTION_CHECK(
        !has_prefix || text.front() != ' ',
        "expected two tokens that make the token {}, \"{}\", or the type 4 "
        "(user-defined): the space that is put before texts may be a part of "
        "it",
        id,
        tokens_.text(id));
    is_symbol_[id] = true;
    tokens_.set_type(id, GgufTokenType::kUserDefined);
    tokens_.set_text(id, std::move(text));
  }

  GgufTokens& tokens_;
  std::vector<double> scores_;
  std::vector<bool> is_symbol_;
};

} // namespace

nlohmann::json merges_of_pieces(GgufTokens& tokens, bool has_prefix) {
  ScoredPieces pieces(tokens);
  pieces.find_symbols(has_prefix);
  return pieces.merges();
}

} // namespace torch_attention::weights::pretrained
