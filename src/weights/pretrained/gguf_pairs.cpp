// Byte pair encoding in GGUF files: by merges, as of GPT-2, and by the scores
// of SentencePiece, whose merges gguf_pieces.cpp finds.

#include <check.h>
#include <weights/pretrained/gguf_tokens.h>
#include <weights/text.h>

#include <nlohmann/json.hpp>

#include <algorithm>
#include <array>
#include <initializer_list>
#include <utility>

namespace torch_attention::weights::pretrained {

namespace {

using Written = nlohmann::json;

/// How texts are split before bytes are joined, by `tokenizer.ggml.pre`.
struct GgufSplit {
  std::string_view name;
  /// Empty for the one of GPT-2.
  std::string_view regex;
  bool has_nfc = false;
  /// A piece that is a token is not put together from its parts.
  bool ignores_merges = false;
  bool adds_bos = false;
};

constexpr std::array kGgufSplits{
    GgufSplit{"gpt-2", ""},
    GgufSplit{
        "llama-bpe",
        "(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|\\p{N}{1,3}"
        "| ?[^\\s\\p{L}\\p{N}]+[\\r\\n]*|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+",
        false,
        true,
        true},
    GgufSplit{
        "qwen2",
        "(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|\\p{N}"
        "| ?[^\\s\\p{L}\\p{N}]+[\\r\\n]*|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+",
        true}};

Written byte_level(bool splits) {
  return {
      {"type", "ByteLevel"},
      {"add_prefix_space", false},
      {"trim_offsets", false},
      {"use_regex", splits}};
}

Written split_by(const char* kind, std::string_view by, const char* behavior) {
  return {
      {"type", "Split"},
      {"pattern", Written::object({{kind, by}})},
      {"behavior", behavior},
      {"invert", false}};
}

Written replaced(std::string_view from, std::string_view to) {
  return {
      {"type", "Replace"},
      {"pattern", Written::object({{"String", from}})},
      {"content", to}};
}

Written sequence_of(const char* field, std::initializer_list<Written> parts) {
  Written result = {{"type", "Sequence"}};
  result[field] = Written(Written::array_t(parts));
  return result;
}

Written byte_pairs(
    Written vocabulary,
    Written merges,
    Written unknown,
    bool ignores_merges) {
  const bool has_unknown = !unknown.is_null();
  return {
      {"type", "BPE"},
      {"dropout", nullptr},
      {"unk_token", std::move(unknown)},
      {"continuing_subword_prefix", nullptr},
      {"end_of_word_suffix", nullptr},
      {"fuse_unk", has_unknown},
      {"byte_fallback", has_unknown},
      {"ignore_merges", ignores_merges},
      {"vocab", std::move(vocabulary)},
      {"merges", std::move(merges)}};
}

/// Sets the tokens that surround a text, and each text of a pair.
void set_surrounding(GgufTokens& tokens, bool adds_bos, Written& tokenizer) {
  auto& fields = tokens.fields();
  auto one = Written::array();
  auto two = Written::array();
  auto special = Written::object();
  const auto place = [](const char* kind, std::string_view id, int type) {
    return Written::object({{kind, {{"id", id}, {"type_id", type}}}});
  };
  const auto text_of = [&](const char* name) {
    const auto id = tokens.named(name);
    TORCH_ATTENTION_CHECK(
        id,
        "expected \"{}\" in the metadata, since it is put around texts",
        GgufTokens::key(name));
    std::string text(tokens.text(*id));
    special[text] = Written::object(
        {{"id", text},
         {"ids", Written::array({*id})},
         {"tokens", Written::array({text})}});
    return text;
  };
  const bool has_bos =
      fields.flag(GgufTokens::key("add_bos_token")).value_or(adds_bos);
  const bool has_eos =
      fields.flag(GgufTokens::key("add_eos_token")).value_or(false);
  const auto bos = has_bos ? text_of("bos_token_id") : "";
  const auto eos = has_eos ? text_of("eos_token_id") : "";
  for (const int type : {0, 1}) {
    if (has_bos) {
      two.push_back(place("SpecialToken", bos, type));
    }
    two.push_back(place("Sequence", type == 0 ? "A" : "B", type));
    if (has_eos) {
      two.push_back(place("SpecialToken", eos, type));
    }
    if (type == 0) {
      one = two;
    }
  }
  tokens.refuse_true("add_sep_token");
  if (special.empty()) {
    return;
  }
  tokenizer["post_processor"] = {
      {"type", "TemplateProcessing"},
      {"single", std::move(one)},
      {"pair", std::move(two)},
      {"special_tokens", std::move(special)}};
}

/// Returns whether a pair of the file makes a token.
bool is_merged(GgufTokens& tokens, size_t id) {
  const auto text = tokens.text(id);
  const auto pairs = tokens.fields().texts(GgufTokens::key("merges"));
  return std::any_of(pairs.begin(), pairs.end(), [&](std::string_view pair) {
    const auto space = pair.find(' ');
    return space != std::string_view::npos && pair.size() == text.size() + 1 &&
        pair.substr(0, space) == text.substr(0, space) &&
        pair.substr(space + 1) == text.substr(space);
  });
}

/// Returns the pairs of the file, after checking that they are tokens.
Written merges_of_file(GgufTokens& tokens) {
  const auto key = GgufTokens::key("merges");
  TORCH_ATTENTION_CHECK(
      tokens.fields().has(key),
      "expected \"{}\" in the metadata, which lacks it",
      key);
  auto merges = Written::array();
  for (const auto pair : tokens.fields().texts(key)) {
    const auto space = pair.find(' ');
    const bool has_two = space != std::string_view::npos &&
        pair.find(' ', space + 1) == std::string_view::npos;
    const std::string left(pair.substr(0, has_two ? space : 0));
    const std::string right(has_two ? pair.substr(space + 1) : "");
    TORCH_ATTENTION_CHECK(
        has_two && tokens.find(left) && tokens.find(right) &&
            tokens.find(left + right),
        "expected two tokens that make a third in each of \"{}\", but got "
        "\"{}\"",
        key,
        pair);
    merges.push_back(Written::array({left, right}));
  }
  return merges;
}

/// Returns the unknown token, after checking that all bytes are tokens.
std::string unknown_token(GgufTokens& tokens) {
  auto unknown = tokens.named("unknown_token_id");
  for (size_t i = 0; !unknown && i < tokens.size(); ++i) {
    if (tokens.type(i) == GgufTokenType::kUnknown) {
      unknown = i;
    }
  }
  TORCH_ATTENTION_CHECK(
      unknown,
      "expected \"tokenizer.ggml.unknown_token_id\" or a token of the type 2 "
      "(unknown) in the metadata");
  for (int byte = 0; byte < 256; ++byte) {
    const auto text = format_text("<0x{:02X}>", byte);
    const auto id = tokens.find(text);
    TORCH_ATTENTION_CHECK(
        id && tokens.type(*id) == GgufTokenType::kByte,
        "expected the token {} of the type 6 (byte) in the metadata",
        text);
  }
  return std::string(tokens.text(*unknown));
}

} // namespace

void set_byte_pairs(GgufTokens& tokens, nlohmann::json& tokenizer) {
  const auto pre = tokens.fields().required_text(GgufTokens::key("pre"));
  const auto* const split = std::find_if(
      kGgufSplits.begin(), kGgufSplits.end(), [&](const GgufSplit& each) {
        return each.name == pre;
      });
  TORCH_ATTENTION_CHECK(
      split != kGgufSplits.end(),
      "expected gpt-2, llama-bpe or qwen2 as \"tokenizer.ggml.pre\", but got "
      "\"{}\"",
      pre);
  tokens.refuse_true("add_space_prefix");
  if (split->has_nfc) {
    tokenizer["normalizer"] = Written::object({{"type", "NFC"}});
  }
  tokenizer["pre_tokenizer"] = split->regex.empty()
      ? byte_level(/*splits=*/true)
      : sequence_of(
            "pretokenizers",
            {split_by("Regex", split->regex, "Isolated"),
             byte_level(/*splits=*/false)});
  tokenizer["decoder"] = byte_level(/*splits=*/true);
  tokens.set_control([&](size_t id) { return is_merged(tokens, id); });
  auto vocabulary = tokens.vocabulary();
  tokenizer["model"] = byte_pairs(
      std::move(vocabulary),
      merges_of_file(tokens),
      nullptr,
      split->ignores_merges);
  set_surrounding(tokens, split->adds_bos, tokenizer);
}

void set_scored_pairs(GgufTokens& tokens, nlohmann::json& tokenizer) {
  const auto pre =
      tokens.fields().text(GgufTokens::key("pre")).value_or("default");
  TORCH_ATTENTION_CHECK(
      pre == "default",
      "expected \"default\" as \"tokenizer.ggml.pre\" of a tokenizer with "
      "scores, but got \"{}\"",
      pre);
  tokens.refuse_true("remove_extra_whitespaces");
  // Put before texts and what follows a special token, as in llama.cpp.
  const bool has_prefix =
      tokens.fields().flag(GgufTokens::key("add_space_prefix")).value_or(true);
  const auto replace = replaced(" ", kSpaceSign);
  const auto restore = replaced(kSpaceSign, " ");
  const auto by_bytes = Written::object({{"type", "ByteFallback"}});
  const auto fuse = Written::object({{"type", "Fuse"}});
  const auto prepend =
      Written::object({{"type", "Prepend"}, {"prepend", kSpaceSign}});
  const auto strip = Written::object(
      {{"type", "Strip"}, {"content", " "}, {"start", 1}, {"stop", 0}});
  tokenizer["normalizer"] =
      has_prefix ? sequence_of("normalizers", {prepend, replace}) : replace;
  // No space is left to split at: a text is one word.
  tokenizer["pre_tokenizer"] = split_by("String", " ", "MergedWithPrevious");
  tokenizer["decoder"] = has_prefix
      ? sequence_of("decoders", {restore, by_bytes, fuse, strip})
      : sequence_of("decoders", {restore, by_bytes, fuse});
  auto merges = merges_of_pieces(tokens, has_prefix);
  auto vocabulary = tokens.vocabulary();
  tokenizer["model"] = byte_pairs(
      std::move(vocabulary), std::move(merges), unknown_token(tokens), false);
  set_surrounding(tokens, /*adds_bos=*/true, tokenizer);
}

} // namespace torch_attention::weights::pretrained
