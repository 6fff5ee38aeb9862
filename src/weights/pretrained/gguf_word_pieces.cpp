// WordPiece in GGUF files. llama.cpp's converter puts kSpaceSign before pieces
// that begin a word, and removes "##" before others.

#include <check.h>
#include <utf8.h>
#include <weights/pretrained/gguf_tokens.h>
#include <weights/text.h>

#include <nlohmann/json.hpp>

#include <algorithm>
#include <array>
#include <string_view>
#include <utility>

namespace torch_attention::weights::pretrained {

namespace {

using Pieces = nlohmann::json;

struct Letters {
  char32_t first;
  char32_t last;
};

/// Letters that lower case without accents changes: those of Latin, Greek,
/// Cyrillic and Armenian that are capitals or have an accent, and syllables of
/// Hangul, which are taken apart.
constexpr std::array kChanged{
    Letters{'A', 'Z'},       Letters{0xC0, 0xD6},     Letters{0xD8, 0xDE},
    Letters{0xE0, 0xE5},     Letters{0xE7, 0xEF},     Letters{0xF1, 0xF6},
    Letters{0xF9, 0xFD},     Letters{0xFF, 0x110},    Letters{0x112, 0x126},
    Letters{0x128, 0x130},   Letters{0x132, 0x132},   Letters{0x134, 0x137},
    Letters{0x139, 0x13F},   Letters{0x141, 0x141},   Letters{0x143, 0x148},
    Letters{0x14A, 0x14A},   Letters{0x14C, 0x152},   Letters{0x154, 0x166},
    Letters{0x168, 0x17E},   Letters{0x1A0, 0x1A1},   Letters{0x1AF, 0x1B0},
    Letters{0x1CD, 0x1DC},   Letters{0x1DE, 0x1E3},   Letters{0x1E6, 0x1F0},
    Letters{0x1F8, 0x21B},   Letters{0x21E, 0x21F},   Letters{0x226, 0x233},
    Letters{0x386, 0x38A},   Letters{0x38C, 0x38C},   Letters{0x38E, 0x3A1},
    Letters{0x3A3, 0x3B0},   Letters{0x3CA, 0x3CE},   Letters{0x400, 0x42F},
    Letters{0x439, 0x439},   Letters{0x450, 0x451},   Letters{0x453, 0x453},
    Letters{0x457, 0x457},   Letters{0x45C, 0x45E},   Letters{0x531, 0x556},
    Letters{0x1E00, 0x1E99}, Letters{0x1E9B, 0x1E9B}, Letters{0x1E9E, 0x1E9E},
    Letters{0x1EA0, 0x1EFA}, Letters{0x1EFC, 0x1EFC}, Letters{0x1EFE, 0x1EFE},
    Letters{0xAC00, 0xD7A3}};

/// Kana with a mark of sound. Katakana lie 0x60 after hiragana.
constexpr std::u32string_view kMarkedKana =
    U"\u304C\u304E\u3050\u3052\u3054\u3056\u3058\u305A\u305C\u305E\u3060"
    U"\u3062\u3065\u3067\u3069\u3070\u3071\u3073\u3074\u3076\u3077\u3079"
    U"\u307A\u307C\u307D\u3094\u309E";
constexpr std::u32string_view kMarkedKatakana = U"\u30F7\u30F8\u30F9\u30FA";

bool changes_in_lower_case(char32_t letter) {
  constexpr char32_t kToKatakana = 0x60;
  constexpr auto kNone = std::u32string_view::npos;
  return kMarkedKana.find(letter) != kNone ||
      (letter > kToKatakana &&
       kMarkedKana.find(letter - kToKatakana) != kNone) ||
      kMarkedKatakana.find(letter) != kNone ||
      std::any_of(kChanged.begin(), kChanged.end(), [&](const Letters& each) {
           return letter >= each.first && letter <= each.last;
         });
}

/// Returns whether lower case without accents changes a piece.
bool changes_in_lower_case(std::string_view text) {
  while (!text.empty()) {
    const auto character = first_character(text);
    if (changes_in_lower_case(character.code)) {
      return true;
    }
    text.remove_prefix(character.size);
  }
  return false;
}

/// Returns the normalizer, as llama.cpp's converter writes its options. Older
/// files lack them: such a model is known by its pieces to be uncased.
Pieces normalizer_of(GgufTokens& tokens) {
  const auto flag = [&](const char* name) {
    return tokens.fields().flag(GgufTokens::key(name));
  };
  const auto lowercase = flag("normalizer.lowercase");
  const auto strip_accents = flag("normalizer.strip_accents");
  for (size_t i = 0; i < tokens.size() && !lowercase && !strip_accents; ++i) {
    TORCH_ATTENTION_CHECK(
        tokens.type(i) != GgufTokenType::kNormal ||
            is_between(tokens.text(i), "[", "]") ||
            !changes_in_lower_case(tokens.text(i)),
        "expected a tokenizer of BERT without upper case and accents, since "
        "the metadata do not say by \"{}\" whether texts lose them, but token "
        "{} is \"{}\"",
        GgufTokens::key("normalizer.lowercase"),
        i,
        tokens.text(i));
  }
  return {
      {"type", "BertNormalizer"},
      {"clean_text", true},
      {"handle_chinese_chars", true},
      {"strip_accents", strip_accents ? Pieces(*strip_accents) : Pieces()},
      {"lowercase", lowercase.value_or(true)}};
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
    const bool is_itself =
        type != GgufTokenType::kNormal || is_between(text, "[", "]");
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
  // Concerns a second text only, before which a [SEP] always is.
  tokens.fields().flag(GgufTokens::key("add_sep_token"));
  for (const auto* name : {"add_bos_token", "add_eos_token"}) {
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
  tokens.set_control([](size_t) { return true; });
  const auto pieces = pieces_of(tokens);
  check_names(tokens, pieces);
  auto vocabulary = tokens.vocabulary(pieces);
  special_piece(tokens, "[UNK]");
  if (const auto mask = tokens.find("[MASK]")) {
    tokens.set_type(*mask, GgufTokenType::kControl);
  }
  tokenizer["normalizer"] = normalizer_of(tokens);
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
