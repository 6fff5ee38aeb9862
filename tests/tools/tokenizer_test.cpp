// Tokenizers of byte pairs: what of their files is read, and what refused.
// Tokens are those of the package tokenizers 0.23.3, and of AutoTokenizer of
// transformers 5.24.

#include <support/test.h>

#include <tools/text/composed.h>
#include <tools/tokenizer_folder.h>

namespace tokenizer_test {

using namespace torch_attention;
using namespace torch_attention::testing;
using namespace torch_attention::tools;

namespace {

using Ids = std::vector<int64_t>;

/// Adds tokens to the vocabulary of a tokenizer.json.
void add_pieces(
    nlohmann::json& tokenizer,
    const std::vector<std::string>& pieces) {
  auto& vocabulary = tokenizer["model"]["vocab"];
  for (const auto& piece : pieces) {
    const auto id = vocabulary.size();
    vocabulary[piece] = id;
  }
}

std::string repeated(const std::string& text, size_t times) {
  std::string result;
  for (size_t i = 0; i < times; ++i) {
    result += text;
  }
  return result;
}

} // namespace

TEST_CASE("A tokenizer.json says what surrounds texts") {
  auto tokenizer = gpt2_tokenizer();
  CHECK(read_tokenizer(tokenizer).around.before.empty());
  CHECK_FALSE(read_tokenizer(tokenizer).normalizer.has_nfc);
  tokenizer["normalizer"] = {{"type", "NFC"}};
  tokenizer["post_processor"] = {
      {"type", "TemplateProcessing"},
      {"single",
       {{{"SpecialToken", {{"id", "<s>"}}}},
        {{"Sequence", {{"id", "A"}}}},
        {{"SpecialToken", {{"id", "</s>"}}}}}},
      {"special_tokens",
       {{"<s>", {{"ids", {1, 5}}}}, {"</s>", {{"ids", {2}}}}}}};
  const auto file = read_tokenizer(tokenizer);
  CHECK(file.normalizer.has_nfc);
  CHECK(file.around.before == Ids{1, 5});
  CHECK(file.around.after == Ids{2});
  tokenizer["post_processor"] = nlohmann::json::parse(
      R"({"type": "RobertaProcessing", "cls": ["<s>", 0], "sep": ["</s>", 2]})");
  CHECK(read_tokenizer(tokenizer).around.before == Ids{0});
  CHECK(read_tokenizer(tokenizer).around.after == Ids{2});
}

TEST_CASE("Kinds of tokenizers that were not compared are refused") {
  const auto refused = [](const char* part, const char* json) {
    auto tokenizer = gpt2_tokenizer();
    tokenizer[nlohmann::json::json_pointer(part)] = nlohmann::json::parse(json);
    return refusal_of(tokenizer);
  };
  CHECK_THAT(
      refused("/model/type", R"("Unigram")"),
      ContainsText("expected a model BPE") && ContainsText("Unigram") &&
          ContainsText("Give tokens by --ids"));
  CHECK_THAT(refused("/model/dropout", "0.1"), ContainsText("BPE without"));
  CHECK_THAT(
      refused("/model/end_of_word_suffix", R"("</w>")"),
      ContainsText("BPE without"));
  CHECK_THAT(
      refused("/normalizer", R"({"type": "Prepend", "prepend": "_"})"),
      ContainsText("the normalizer is of a kind"));
  CHECK_THAT(
      refused(
          "/normalizer",
          R"({"type": "Sequence", "normalizers": [{"type": "Lowercase"}]})"),
      ContainsText("the normalizer is of a kind"));
  CHECK_THAT(
      refused("/pre_tokenizer/add_prefix_space", "true"),
      ContainsText("the pre_tokenizer is of a kind"));
  CHECK_THAT(
      refused("/pre_tokenizer/use_regex", "false"),
      ContainsText("the pre_tokenizer is of a kind"));
  CHECK_THAT(
      refused("/pre_tokenizer", "null"),
      ContainsText("the pre_tokenizer is of a kind"));
  CHECK_THAT(
      refused(
          "/normalizer",
          R"({"type": "Replace", "pattern": {"String": " "}, "content": "▁"})"),
      ContainsText("the pre_tokenizer is of a kind"));
  CHECK_THAT(
      refused("/pre_tokenizer", R"({"type": "Whitespace"})"),
      ContainsText("the pre_tokenizer is of a kind"));
  CHECK_THAT(
      refused(
          "/pre_tokenizer",
          R"({"type": "Split", "pattern": {"Regex": "\\d"},
              "behavior": "Isolated", "invert": false})"),
      ContainsText("the pre_tokenizer is of a kind"));
  CHECK_THAT(
      refused("/post_processor", R"({"type": "BertProcessing"})"),
      ContainsText("the post_processor is of a kind"));
  CHECK_THAT(
      refused(
          "/post_processor",
          R"({"type": "TemplateProcessing", "single":
              [{"SpecialToken": {"id": "<s>"}}], "special_tokens": {}})"),
      ContainsText("the post_processor is of a kind"));
  CHECK_THAT(
      refused("/decoder", R"({"type": "WordPiece"})"),
      ContainsText("the decoder is of a kind"));
  CHECK(refused("/decoder", R"({"type": "ByteLevel"})").empty());
}

TEST_CASE("A text with a zero byte is refused") {
  const TokenizerFile file;
  CHECK(shown_parts(file, "a b") == "a b");
  THROWS_WITH(
      text_parts(file, std::string("a\0b", 3)),
      "expected a text without zero bytes, but got one at 1");
  THROWS_WITH(text_parts(file, "a\xff"), "expected a text in UTF-8");
  // Only for the library that splits words.
  CHECK(
      TokenizerFolder(gemma_tokenizer()).encode(std::string("\0\n", 2)) ==
      Ids{0, 10});
}

TEST_CASE("A tokenizer needs a token for each byte") {
  auto gpt2 = gpt2_tokenizer();
  gpt2["model"]["vocab"].erase("Ġ");
  CHECK_THAT(refusal_of(gpt2), ContainsText("the vocabulary lacks \"Ġ\""));
  auto gemma = gemma_tokenizer();
  CHECK(refusal_of(gemma).empty());
  gemma["model"]["byte_fallback"] = false;
  CHECK_THAT(
      refusal_of(gemma),
      ContainsText("expected byte_fallback = true") &&
          ContainsText("but got false"));
  gemma["model"].erase("byte_fallback");
  CHECK_THAT(refusal_of(gemma), ContainsText("but got null"));
  gemma["model"]["byte_fallback"] = true;
  gemma["model"]["vocab"].erase("<0xFF>");
  CHECK_THAT(refusal_of(gemma), ContainsText("lacks \"<0xFF>\""));
}

TEST_CASE("Texts with tokens that no merges make are refused") {
  auto tokenizer = gpt2_tokenizer();
  auto& model = tokenizer["model"];
  for (const auto* token : {"ab", "abc", "bc", "Ġxy", "<s>"}) {
    model["vocab"][token] = model["vocab"].size();
  }
  tokenizer["added_tokens"] = nlohmann::json::array(
      {added_token(model["vocab"]["<s>"].get<int64_t>(), "<s>", false)});
  // The letters of abc become a and bc.
  model["merges"] = {"b c", nlohmann::json{"a", "b"}, "ab c"};
  const auto file = read_tokenizer(tokenizer);
  CHECK(file.refused_texts == std::vector<std::string>{"abc", " xy"});
  CHECK(shown_parts(file, "ab bc xz <s>") == "ab bc xz |260");
  THROWS_WITH(
      text_parts(file, "a xyz"), "a text with \" xy\" would have other");
  model["ignore_merges"] = true;
  CHECK(read_tokenizer(tokenizer).refused_texts.empty());
  model["ignore_merges"] = false;
  model["merges"] = nlohmann::json::array({"a x"});
  CHECK_THAT(
      refusal_of(tokenizer),
      ContainsText("two tokens that make a third") && ContainsText("a x"));
}

TEST_CASE("A text whose spaces are letters is one word, however long") {
  auto tokenizer = gemma_tokenizer();
  add_pieces(
      tokenizer,
      {"猫", "是", "猫是", "▁", "▁▁", "▁▁▁▁", "a", "b", "ab", "aba", "b▁"});
  auto& model = tokenizer["model"];
  model["merges"] = {"猫 是", "▁ ▁", "▁▁ ▁▁", "a b", "ab a", "b ▁"};
  const TokenizerFolder folder(tokenizer);
  CHECK(folder.encode(repeated("猫是", 51)) == Ids(51, 258));
  CHECK(folder.encode(repeated("猫是", 2000)) == Ids(2000, 258));
  CHECK(folder.encode(repeated(" ", 120)) == Ids(30, 261));
  // Lower merges come first, also across spaces.
  CHECK(folder.encode("abab a") == Ids{264, 264, 259, 262});
  CHECK(folder.encode("bababa") == Ids{263, 264, 265});
  CHECK(folder.encode("bb a") == Ids{263, 266, 262});
  // Characters that are no tokens become bytes.
  CHECK(folder.encode("aé") == Ids{262, 0xC3, 0xA9});
  CHECK(folder.encode("").empty());

  SECTION("also if nothing splits it") {
    tokenizer["pre_tokenizer"] = nullptr;
    CHECK(
        TokenizerFolder(tokenizer).encode("abab a") == Ids{264, 264, 259, 262});
  }
  SECTION("which may be a token that no merges make") {
    add_pieces(tokenizer, {"abab"});
    CHECK(TokenizerFolder(tokenizer).encode("abab") == Ids{264, 264});
    model["ignore_merges"] = true;
    CHECK(TokenizerFolder(tokenizer).encode("abab") == Ids{267});
    CHECK(TokenizerFolder(tokenizer).encode("abababab") == Ids(4, 264));
  }
}

TEST_CASE("Added tokens are found before and after a text is normalized") {
  auto tokenizer = gemma_tokenizer();
  add_pieces(tokenizer, {"▁", "x", "▁▁"});
  tokenizer["added_tokens"] = {
      added_token(259, "<x y>", true),
      added_token(258, "▁▁", true),
      added_token(260, "<z w>", false),
      added_token(261, "▁▁▁", false),
      added_token(262, "<n>", true)};
  auto file = read_tokenizer(tokenizer);
  CHECK(shown_parts(file, "<z w>▁<n>") == "260|▁|262");
  CHECK(shown_parts(file, "a<x y><x▁y>") == "a|259|259");
  CHECK(shown_parts(file, "a  b") == "a|258|b");
  CHECK(shown_parts(file, "▁▁▁ ▁▁ ▁") == "261|258|258|▁");
  CHECK(TokenizerFolder(tokenizer).encode("x <n>") == Ids{257, 256, 262});

  tokenizer["normalizer"] = nlohmann::json::parse(
      R"({"type": "Sequence", "normalizers": [
          {"type": "Prepend", "prepend": "▁"},
          {"type": "Replace", "pattern": {"String": " "}, "content": "▁"}]})");
  file = read_tokenizer(tokenizer);
  CHECK(shown_parts(file, "x<z w>y<n>") == "▁x|260|▁y<n>");
  CHECK(shown_parts(file, "<n>") == "262");
  CHECK(shown_parts(file, "").empty());

  tokenizer = gpt2_tokenizer();
  tokenizer["normalizer"] = {{"type", "NFC"}};
  tokenizer["added_tokens"] = {
      added_token(256, "e\u0301x", true),
      added_token(257, "e\u0301y", false),
      added_token(258, "\u00e9\u00e9", false),
      added_token(259, "<|end|>", false)};
  file = read_tokenizer(tokenizer);
  for (const auto& [text, expected] :
       {std::pair{"o\u0308 <|end|>a", "\u00f6 |259|a"},
        std::pair{"\u00e9\u00e9x", "258|x"},
        std::pair{"ae\u0301x", "a|256"},
        std::pair{"e\u0301y", "257"},
        std::pair{"\u00e9\u00e9\u0323", "258|\u0323"},
        std::pair{"<|end|>\u0338", "259|\u0338"}}) {
    CHECK(shown_parts(file, text) == expected);
  }
  // GenAI would find the token that the normalizer has made.
  THROWS_WITH(
      text_parts(file, "e\u0301e\u0301"), "would have other tokens here");
}

TEST_CASE("Tokens that are not normalized come first") {
  auto tokenizer = gpt2_tokenizer();
  tokenizer["added_tokens"] = {
      added_token(256, "ab", true),
      added_token(257, "b<c", false),
      added_token(258, "b<", false)};
  const auto file = read_tokenizer(tokenizer);
  CHECK(shown_parts(file, "ab<c") == "a|257");
  CHECK(shown_parts(file, "ab<d ab") == "a|258|d |256");
}

TEST_CASE("Added tokens that depend on what is next to them are refused") {
  for (const auto* flag : {"lstrip", "rstrip", "single_word"}) {
    CAPTURE(flag);
    auto tokenizer = gpt2_tokenizer();
    tokenizer["added_tokens"] = {added_token(256, "<mask>", false)};
    tokenizer["added_tokens"][0][flag] = true;
    const auto file = read_tokenizer(tokenizer);
    CHECK(shown_parts(file, "a") == "a");
    THROWS_WITH(text_parts(file, "a <mask>"), "a text with \"<mask>\" would");
  }
}

TEST_CASE("Added tokens have the numbers that Python gives them") {
  auto tokenizer = gpt2_tokenizer();
  const auto refused = [&](const nlohmann::json& tokens, const char* message) {
    tokenizer["added_tokens"] = tokens;
    CHECK_THAT(refusal_of(tokenizer), ContainsText(message));
  };
  refused(
      nlohmann::json::array({added_token(300, "zz", false)}),
      "expected the number 256 for the added token \"zz\"");
  refused(nlohmann::json::array({added_token(300, "a", false)}), "but got 300");
  refused(
      {added_token(257, "zz", false), added_token(256, "yy", false)},
      "expected the number 256");
  const auto a = tokenizer["model"]["vocab"]["a"].get<int64_t>();
  tokenizer["added_tokens"] = {
      added_token(256, "zz", false),
      added_token(a, "a", false),
      added_token(257, "yy", true)};
  CHECK(refusal_of(tokenizer).empty());
  // The numbers of the vocabulary may have gaps, and do not count.
  tokenizer["model"]["vocab"]["b"] = 1000;
  tokenizer["added_tokens"] = {
      added_token(256, "zz", false),
      added_token(1000, "b", false),
      added_token(257, "yy", true)};
  CHECK(refusal_of(tokenizer).empty());
}

TEST_CASE("Marks that tokenizers does not know stay where they are") {
  CHECK(composed("a\u0345\u0301") == "\u00e1\u0345");
  CHECK(composed("a\u0345\u0898") == "a\u0345\u0898");
  CHECK(composed("a\u0898\u0316e\u0301") == "a\u0898\u0316\u00e9");
  CHECK(composed("\U00011935\U00011930") == "\U00011935\U00011930");
  CHECK(composed("").empty());
}

TEST_CASE("A text that is too long loses the end that the folder names") {
  auto tokenizer = gemma_tokenizer();
  tokenizer["post_processor"] = nlohmann::json::parse(
      R"({"type": "RobertaProcessing", "cls": ["<s>", 1], "sep": ["</s>", 2]})");
  const TokenizerFolder folder(tokenizer);
  CHECK(folder.encode("\x05\x06\x07", 4) == Ids{1, 5, 6, 2});
  folder.write("tokenizer_config.json", {{"truncation_side", "left"}});
  CHECK(folder.encode("\x05\x06\x07", 4) == Ids{1, 6, 7, 2});
  CHECK(folder.encode("\x05\x06\x07", 9) == Ids{1, 5, 6, 7, 2});
  THROWS_WITH(folder.encode("a", 1), "a max_length of 2 tokens or more");
  tokenizer["truncation"] = {{"direction", "Left"}};
  CHECK(TokenizerFolder(tokenizer).encode("\x05\x06\x07", 3) == Ids{1, 7, 2});
}

} // namespace tokenizer_test
