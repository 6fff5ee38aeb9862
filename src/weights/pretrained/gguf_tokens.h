#pragma once

#include <weights/files/gguf_header.h>
#include <weights/pretrained/gguf_fields.h>

#include <nlohmann/json_fwd.hpp>

#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

namespace torch_attention::weights::pretrained {

/// The values of `tokenizer.ggml.token_type`.
enum class GgufTokenType : int64_t {
  kNormal = 1,
  kUnknown = 2,
  kControl = 3,
  kUserDefined = 4,
  kUnused = 5,
  kByte = 6,
};

/// The tokens of a GGUF file, and the metadata about them.
class GgufTokens {
 public:
  /// Throws c10::Error unless tokens and their types are there, as many as the
  /// embedding has rows. The header must outlive it.
  explicit GgufTokens(const files::GgufHeader& header);

  size_t size() const {
    return texts_.size();
  }
  std::string_view text(size_t id) const {
    return texts_[id];
  }
  GgufTokenType type(size_t id) const {
    return types_[id];
  }
  void set_type(size_t id, GgufTokenType type) {
    types_[id] = type;
  }
  void set_text(size_t id, std::string text) {
    texts_[id] = changed_.emplace_back(std::move(text));
  }

  /// Names a key: "pre" is "tokenizer.ggml.pre".
  static std::string key(const std::string& name) {
    return "tokenizer.ggml." + name;
  }
  GgufFields& fields() {
    return fields_;
  }

  /// Numbers the tokens by these texts, but those that are not used, and
  /// returns them as an object. Throws c10::Error if two are equal.
  nlohmann::json vocabulary(const std::vector<std::string>& texts);
  /// Numbers them by their own texts.
  nlohmann::json vocabulary();

  /// Returns the number of a text in the vocabulary; none if it has none.
  std::optional<size_t> find(const std::string& text) const;

  /// Returns the number of a token that the metadata names, such as
  /// "bos_token_id"; none if it names none. Throws c10::Error for one that is
  /// not there.
  std::optional<size_t> named(const std::string& name);

  /// Makes control tokens of those that the metadata name as a begin, an end,
  /// a padding and so on, and of normal ones with the text of one. A token that
  /// is named may be one of the text's: a normal one of which `is_made` is true
  /// stays as it is, unless it is in angle or square brackets.
  void set_control(const std::function<bool(size_t)>& is_made);

  /// Throws c10::Error for a flag that is true.
  void refuse_true(const char* name);

  /// Returns the "added_tokens": those that are found in texts as they stand.
  nlohmann::json added() const;

  /// Throws c10::Error for metadata that was not read and may change tokens.
  void check_all_read();

 private:
  const files::GgufHeader& header_;
  GgufFields fields_;
  std::vector<std::string_view> texts_;
  /// The texts that `set_text` was given, which do not move.
  std::deque<std::string> changed_;
  std::vector<GgufTokenType> types_;
  std::unordered_map<std::string, size_t> ids_;
};

/// Returns whether a text is `begin` and `end` with more between them.
bool is_between(
    std::string_view text,
    std::string_view begin,
    std::string_view end);

/// Returns the number of characters; none if the text is no UTF-8.
std::optional<size_t> num_characters(std::string_view text);

/// The sign of SentencePiece for a space.
constexpr std::string_view kSpaceSign = "\u2581";

/// Set the parts of a tokenizer.json for the values gpt2, llama and bert of
/// `tokenizer.ggml.model`. Throw c10::Error, which names the key, for metadata
/// that is missing, impossible or contradictory.
void set_byte_pairs(GgufTokens& tokens, nlohmann::json& tokenizer);
void set_scored_pairs(GgufTokens& tokens, nlohmann::json& tokenizer);
void set_word_pieces(GgufTokens& tokens, nlohmann::json& tokenizer);

/// Returns the merges of SentencePiece's byte pairs by scores, after making
/// control tokens and user-defined symbols of pieces that are none. Its tokens
/// have their numbers in a vocabulary that is made afterwards.
nlohmann::json merges_of_pieces(GgufTokens& tokens, bool has_prefix);

} // namespace torch_attention::weights::pretrained
