// WordPiece in GGUF files. llama.cpp's converter puts kSpaceSign before pieces
// that begin a word, and removes "##" before others.

#include <check.h>
#include <weights/pretrained/gguf_tokens.h>
#include <weights/text.h>

#include <nlohmann/json.hpp>

#include <algorithm>
#include <array>
#include <cstdint>
#include <string_view>
#include <utility>

namespace torch_attention::weights::pretrained {

namespace {

using Pieces = nlohmann::json;

/// Returns whether lower case without accents changes a letter, of the scripts
/// whose letters have two bytes: Latin, Greek and Cyrillic.
bool changes_in_lower_case(uint32_t letter) {
  const auto is_in = [&](uint32_t first, uint32_t last) {
    return letter >= first && letter <= last;
  };
  // Letters that have no accent: Latin-1's signs, and sharp s, ae, eth, thorn
  // and o with a stroke in lower case.
  constexpr std::array<uint32_t, 7> kPlain{
      0xD7, 0xDF, 0xE6, 0xF0, 0xF7, 0xF8, 0xFE};
  if (is_in(0xC0, 0xFF)) {
    return std::find(kPlain.begin(), kPlain.end(), letter) == kPlain.end();
  }
  // Latin letters with accents; Greek and Cyrillic capitals.
  return is_in('A', 'Z') || is_in(0x100, 0x110) || is_in(0x112, 0x125) ||
      is_in(0x128, 0x130) || is_in(0x134, 0x137) || is_in(0x139, 0x13E) ||
      is_in(0x143, 0x148) || is_in(0x14C, 0x151) || is_in(0x154, 0x165) ||
      is_in(0x168, 0x17E) || is_in(0x386, 0x3AB) || is_in(0x400, 0x42F);
}

/// Returns whether lower case without accents changes a piece.
bool changes_in_lower_case(std::string_view text) {
  for (size_t i = 0; i < text.size(); ++i) {
    const auto byte = static_cast<unsigned char>(text[i]);
    const bool has_two = byte >= 0xC0 && byte < 0xE0 && i + 1 < text.size();
    if (byte < 0x80 && changes_in_lower_case(uint32_t{byte})) {
      return true;
    }
    if (has_two &&
        changes_in_lower_case(
            (byte & 0x1FU) << 6U |
            (static_cast<unsigned char>(text[i + 1]) & 0x3FU))) {
      return true;
    }
  }
  return false;
}

/// Returns the tokens as BERT has them.
std::vector<std::string> pieces_of(const GgufTokens& tokens) {
  std::vector<std::string> pieces;
  for (size_t i = 0; i < tokens.size(); ++i) {
    const auto text = tokens.text(i);
    const auto type = tokens.type(i);
    TORCH_ATTENTION_CHECK(
        type != GgufTokenType::kUserDefined && type != GgufTokenType::kByte,
        "the token {} of a tokenizer of BERT has the type {}",
        i,
        static_cast<int64_t>(type));
    const bool is_itself = type != GgufTokenType::kNormal ||
        (starts_with(text, "[") && ends_with(text, "]") && text.size() > 2);
    TORCH_ATTENTION_CHECK(
        is_itself || !changes_in_lower_case(text),
        "expected a tokenizer of BERT without upper case and accents, since "
        "the metadata does not say whether texts lose them, but token {} is "
        "\"{}\"",
        i,
        text);
    if (is_itself) {
      pieces.emplace_back(text);
    } else if (starts_with(text, kSpaceSign)) {
      pieces.emplace_back(text.substr(kSpaceSign.size()));
    } else {
      pieces.push_back("##" + std::string(text));
    }
  }
  return pieces;
}

/// Throws c10::Error unless the metadata name BERT's special tokens, if any.
void check_names(GgufTokens& tokens, const std::vector<std::string>& pieces) {
  for (const auto& [name, text] :
       {std::pair{"cls_token_id", "[CLS]"},
        std::pair{"bos_token_id", "[CLS]"},
        std::pair{"seperator_token_id", "[SEP]"},
        std::pair{"eos_token_id", "[SEP]"},
        std::pair{"unknown_token_id", "[UNK]"}}) {
    const auto id = tokens.named(name);
    TORCH_ATTENTION_CHECK(
        !id || pieces[*id] == text,
        "expected the number of {} as \"{}\", but got that of \"{}\"",
        text,
        GgufTokens::key(name),
        id ? pieces[*id] : "");
  }
  for (const auto* name : {"add_bos_token", "add_eos_token", "add_sep_token"}) {
    TORCH_ATTENTION_CHECK(
        tokens.fields().flag(GgufTokens::key(name)).value_or(true),
        "expected true as \"{}\" of a tokenizer of BERT, but got false",
        GgufTokens::key(name));
  }
}

/// Makes a token special, and returns how a template names it.
Pieces special_piece(GgufTokens& tokens, const char* text) {
  const auto id = tokens.find(text);
  TORCH_ATTENTION_CHECK(
      id, "expected the token {} in \"tokenizer.ggml.tokens\"", text);
  tokens.set_type(*id, GgufTokenType::kControl);
  return Pieces::object(
      {{"id", text},
       {"ids", Pieces::array({*id})},
       {"tokens", Pieces::array({text})}});
}

Pieces between_special_pieces(GgufTokens& tokens) {
  const auto place = [](const char* kind, const char* id, int type) {
    return Pieces::object({{kind, {{"id", id}, {"type_id", type}}}});
  };
  auto one = Pieces::array();
  one.push_back(place("SpecialToken", "[CLS]", 0));
  one.push_back(place("Sequence", "A", 0));
  one.push_back(place("SpecialToken", "[SEP]", 0));
  auto two = one;
  two.push_back(place("Sequence", "B", 1));
  two.push_back(place("SpecialToken", "[SEP]", 1));
  auto special = Pieces::object();
  for (const auto* text : {"[CLS]", "[SEP]"}) {
    special[text] = special_piece(tokens, text);
  }
  return {
      {"type", "TemplateProcessing"},
      {"single", std::move(one)},
      {"pair", std::move(two)},
      {"special_tokens", std::move(special)}};
}

} // namespace

void set_word_pieces(GgufTokens& tokens, nlohmann::json& tokenizer) {
  const auto pieces = pieces_of(tokens);
  check_names(tokens, pieces);
  auto vocabulary = tokens.vocabulary(pieces);
  special_piece(tokens, "[UNK]");
  tokenizer["normalizer"] = {
      {"type", "BertNormalizer"},
      {"clean_text", true},
      {"handle_chinese_chars", true},
      {"strip_accents", nullptr},
      {"lowercase", true}};
  tokenizer["pre_tokenizer"] = Pieces::object({{"type", "BertPreTokenizer"}});
  tokenizer["post_processor"] = between_special_pieces(tokens);
  tokenizer["decoder"] = {
      {"type", "WordPiece"}, {"prefix", "##"}, {"cleanup", true}};
  tokenizer["model"] = {
      {"type", "WordPiece"},
      {"unk_token", "[UNK]"},
      {"continuing_subword_prefix", "##"},
      {"max_input_chars_per_word", 100},
      {"vocab", std::move(vocabulary)}};
}

} // namespace torch_attention::weights::pretrained
