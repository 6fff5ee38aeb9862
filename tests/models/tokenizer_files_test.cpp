// Folders of tokenizers whose files add tokens, or contradict each other.
// Tokens are those of `BertTokenizerFast` of transformers 5.24.

#include <support/temporary_folder.h>
#include <support/test.h>

#include <torch_attention/models/word_piece.h>

#include <nlohmann/json.hpp>

#include <filesystem>
#include <fstream>

namespace tokenizer_files_test {

using namespace torch_attention;
using namespace torch_attention::testing;

namespace {

using nlohmann::json;
using Ids = std::vector<int64_t>;

/// A folder with a vocabulary of six pieces.
class Folder {
 public:
  Folder() {
    write_text("vocab.txt", "[UNK]\n[CLS]\n[SEP]\na\nb\nfoo\n");
  }

  void write_text(const char* name, const std::string& text) const {
    std::ofstream(folder_.file(name), std::ios::binary) << text;
  }

  void write(const char* name, const json& value) const {
    write_text(name, value.dump());
  }

  /// Writes a `tokenizer.json` with changes to its parts.
  void write_tokenizer(const json& changes) const {
    json tokenizer = {
        {"added_tokens", json::array()},
        {"normalizer", {{"type", "BertNormalizer"}, {"lowercase", true}}},
        {"pre_tokenizer", {{"type", "BertPreTokenizer"}}},
        {"model",
         {{"type", "WordPiece"},
          {"max_input_chars_per_word", 100},
          {"vocab",
           {{"[UNK]", 0},
            {"[CLS]", 1},
            {"[SEP]", 2},
            {"a", 3},
            {"b", 4},
            {"foo", 5}}}}}};
    tokenizer.merge_patch(changes);
    write("tokenizer.json", tokenizer);
  }

  void remove(const char* name) const {
    std::filesystem::remove(folder_.file(name));
  }

  Ids encode(const std::string& text) const {
    CHECK(models::WordPiece::is_in(folder_.path()));
    return open().encode(text);
  }

  models::WordPiece open() const {
    return models::WordPiece(folder_.path());
  }

  /// Returns the message with which the folder is refused.
  std::string error() const {
    CHECK_FALSE(models::WordPiece::is_in(folder_.path()));
    try {
      open();
    } catch (const c10::Error& error) {
      return error.what_without_backtrace();
    }
    return "nothing was thrown";
  }

 private:
  TemporaryFolder folder_;
};

} // namespace

TEST_CASE("Special tokens that a vocabulary lacks come after it") {
  const Folder folder;
  CHECK(folder.encode("a [MASK] b") == Ids{1, 3, 7, 4, 2});
  CHECK(folder.encode("a [PAD] foo") == Ids{1, 3, 6, 5, 2});
  const json tokens = {
      {"bos_token", "<s>"},
      {"eos_token", "</s>"},
      {"additional_special_tokens", {"</x>"}}};
  for (const auto* name :
       {"tokenizer_config.json", "special_tokens_map.json"}) {
    CAPTURE(name);
    const Folder with_tokens;
    with_tokens.write(name, tokens);
    CHECK(
        with_tokens.encode("A <s> </s> </x> FOO fooa [PAD][MASK]") ==
        Ids{1, 3, 6, 7, 10, 5, 0, 8, 9, 2});
  }
}

TEST_CASE("Null is no token, and fields of other names are tokens, too") {
  const Folder folder;
  folder.write("tokenizer_config.json", json{{"mask_token", nullptr}});
  CHECK(folder.encode("[MASK]") == Ids{1, 0, 0, 0, 2});
  folder.write("tokenizer_config.json", json{{"my_token", "foo"}});
  CHECK(folder.encode("afoob") == Ids{1, 3, 5, 4, 2});
  folder.write("tokenizer_config.json", json{{"my_token", "</x>"}});
  CHECK_THAT(
      folder.error(), ContainsText("the token \"</x>\", the my_token of"));
}

TEST_CASE("Added tokens of both files are found as they stand") {
  const Folder folder;
  const json stated = {
      {"5", {{"content", "foo"}, {"normalized", false}}},
      {"6", {{"content", "</x>"}, {"special", true}}}};
  folder.write("tokenizer_config.json", json{{"added_tokens_decoder", stated}});
  // Files of older versions are not read beside it.
  folder.write("added_tokens.json", json{{"</y>", 9}});
  folder.write("special_tokens_map.json", json{{"mask_token", "</z>"}});
  CHECK(folder.encode("afoo </x> [PAD] [MASK]") == Ids{1, 3, 5, 6, 7, 8, 2});
  const Folder older;
  older.write("added_tokens.json", json{{"</x>", 6}});
  older.write(
      "special_tokens_map.json", json{{"additional_special_tokens", {"</x>"}}});
  CHECK(older.encode("a</x>") == Ids{1, 3, 6, 2});
}

TEST_CASE("Added tokens of other forms, or other numbers, are refused") {
  const Folder folder;
  const auto add = [&](const char* id, const json& token) {
    folder.write(
        "tokenizer_config.json", json{{"added_tokens_decoder", {{id, token}}}});
    return folder.error();
  };
  CHECK_THAT(
      add("6", {{"content", "x"}}),
      ContainsText("normalized and single_word = false"));
  CHECK_THAT(
      add("6", {{"content", "x"}, {"special", true}, {"single_word", true}}),
      ContainsText("but \"x\" is not"));
  CHECK_THAT(
      add("9", {{"content", "x"}, {"special", true}}),
      ContainsText("to have the number 6"));
  CHECK_THAT(
      add("a", {{"content", "x"}, {"special", true}}),
      ContainsText("expected numbers in \"added_tokens_decoder\""));
  CHECK_THAT(add("6", "x"), ContainsText("expected objects in"));
  folder.remove("tokenizer_config.json");
  folder.write("added_tokens.json", json{{"x", 6}});
  CHECK_THAT(
      folder.error(), ContainsText("would be found in other forms of it"));
}

TEST_CASE("Files of a tokenizer that contradict each other are refused") {
  const Folder folder;
  folder.write_tokenizer(json::object());
  CHECK(folder.encode("A foo") == Ids{1, 3, 5, 2});
  const auto error = [&](const json& config, const json& tokenizer) {
    folder.write("tokenizer_config.json", config);
    folder.write_tokenizer(tokenizer);
    return folder.error();
  };
  CHECK_THAT(
      error({{"do_lower_case", false}}, json::object()),
      ContainsText("has lowercase = true, and"));
  CHECK_THAT(
      error(json::object(), {{"normalizer", {{"lowercase", false}}}}),
      ContainsText("do_lower_case = true, if only by default"));
  CHECK_THAT(
      error(json::object(), {{"normalizer", {{"strip_accents", false}}}}),
      ContainsText("has strip_accents = false"));
  CHECK_THAT(
      error({{"tokenize_chinese_chars", false}}, json::object()),
      ContainsText("has handle_chinese_chars = true"));
  CHECK_THAT(
      error(json::object(), {{"model", {{"unk_token", "a"}}}}),
      ContainsText("has unk_token = a"));
  CHECK_THAT(
      error(json::object(), {{"model", {{"max_input_chars_per_word", 5}}}}),
      ContainsText("expected max_input_chars_per_word = 100"));
  CHECK_THAT(
      error({{"split_special_tokens", true}}, json::object()),
      ContainsText("expected split_special_tokens = false"));
  CHECK_THAT(
      error({{"tokenizer_class", "GPT2Tokenizer"}}, json::object()),
      ContainsText("but got \"GPT2Tokenizer\""));
  const auto listed = json::array(
      {{{"id", 6},
        {"content", "x"},
        {"special", true},
        {"normalized", false}}});
  CHECK_THAT(
      error(
          {{"added_tokens_decoder", json::object()}},
          {{"added_tokens", listed}}),
      ContainsText("adds the token \"x\""));
}

TEST_CASE("The generic class does what tokenizer.json says") {
  const Folder folder;
  folder.write(
      "tokenizer_config.json",
      json{{"tokenizer_class", "PreTrainedTokenizerFast"}});
  CHECK_THAT(
      folder.error(),
      ContainsText("tokenizer.json, which the tokenizer_class"));
  const auto around = [](const json& single) {
    const auto token = [](const char* text, int64_t id) {
      return json{{"id", text}, {"ids", {id}}, {"tokens", {text}}};
    };
    return json{
        {"type", "TemplateProcessing"},
        {"single", single},
        {"special_tokens",
         {{"[CLS]", token("[CLS]", 1)},
          {"[SEP]", token("[SEP]", 2)},
          {"a", token("a", 3)},
          {"b", token("b", 7)}}}};
  };
  const json text = {{"Sequence", {{"id", "A"}, {"type_id", 0}}}};
  const auto token = [](const char* name) {
    return json{{"SpecialToken", {{"id", name}, {"type_id", 0}}}};
  };
  const auto encode = [&](const json& post_processor) {
    folder.write_tokenizer(
        {{"normalizer", {{"lowercase", false}}},
         {"post_processor", post_processor}});
    return folder.encode("A foo [MASK]");
  };
  // [MASK] is none of the added tokens.
  const Ids whole{1, 0, 5, 0, 0, 0, 2};
  CHECK(encode(around({token("[CLS]"), text, token("[SEP]")})) == whole);
  CHECK(
      encode(
          {{"type", "BertProcessing"},
           {"cls", {"[CLS]", 1}},
           {"sep", {"[SEP]", 2}}}) == whole);
  CHECK(
      encode(around({token("a"), text, token("[SEP]")})) ==
      Ids{3, 0, 5, 0, 0, 0, 2});
  for (const auto& post_processor :
       {json(),
        around({text, token("[SEP]")}),
        around({token("[CLS]"), text}),
        around({token("[CLS]"), token("[SEP]"), text}),
        around({token("b"), text, token("[SEP]")}),
        json{{"type", "ByteLevel"}}}) {
    CAPTURE(post_processor.dump());
    folder.write_tokenizer({{"post_processor", post_processor}});
    CHECK_THAT(
        folder.error(),
        ContainsText("a post_processor with one token of the vocabulary"));
  }
}

TEST_CASE("A folder's class is the one that AutoTokenizer chooses") {
  const Folder folder;
  const auto class_error = [&](const char* type, const json& named) {
    folder.write("config.json", json{{"model_type", type}});
    folder.write("tokenizer_config.json", json{{"tokenizer_class", named}});
    return folder.error();
  };
  folder.write("config.json", json{{"model_type", "electra"}});
  CHECK(folder.encode("a foo") == Ids{1, 3, 5, 2});
  for (const auto* name : {"TokenizersBackend", "RetriBertTokenizer"}) {
    CHECK_THAT(
        class_error("bert", name), ContainsText("expected tokenizer.json, "));
  }
  CHECK_THAT(
      class_error("nystromformer", "BertTokenizer"),
      ContainsText("expected tokenizer.json, "));
  CHECK_THAT(
      class_error("bert", "BertJapaneseTokenizer"),
      ContainsText("but got \"BertJapaneseTokenizer\""));
  CHECK_THAT(
      class_error("roberta", nullptr),
      ContainsText("but got \"RobertaTokenizer\""));
  CHECK_THAT(
      class_error("qwen2", "BertTokenizer"),
      ContainsText("but got \"Qwen2Tokenizer\""));
  CHECK_THAT(
      class_error("gpt_neox", nullptr),
      ContainsText("but got \"the class of this model_type\""));
  // The class of config.json, if tokenizer_config.json names none.
  folder.remove("tokenizer_config.json");
  folder.write(
      "config.json",
      json{{"model_type", "bert"}, {"tokenizer_class", "GPT2TokenizerFast"}});
  CHECK_THAT(folder.error(), ContainsText("but got \"GPT2Tokenizer\""));
  folder.write(
      "config.json",
      json{{"model_type", "bert"}, {"tokenizer_class", "ElectraTokenizer"}});
  CHECK(folder.encode("a foo") == Ids{1, 3, 5, 2});
  // MPNet's class puts other tokens around texts.
  folder.write_text("vocab.txt", "[UNK]\n[CLS]\n[SEP]\na\nb\nfoo\n<s>\n</s>\n");
  folder.write("config.json", json{{"model_type", "mpnet"}});
  CHECK(folder.encode("a <mask>") == Ids{6, 3, 9, 7});
  CHECK(folder.encode("[MASK]") == Ids{6, 0, 0, 0, 7});
}

TEST_CASE("Tokenizers of other files and of Python code are refused") {
  const Folder folder;
  const auto error = [&](const json& config) {
    folder.write("tokenizer_config.json", config);
    return folder.error();
  };
  CHECK_THAT(
      error({{"auto_map", {{"AutoTokenizer", {"a.B", nullptr}}}}}),
      ContainsText("names Python code"));
  CHECK_THAT(
      error({{"fast_tokenizer_files", {"tokenizer.4.0.0.json"}}}),
      ContainsText("but got \"tokenizer.4.0.0.json\", which is not read"));
  folder.write(
      "tokenizer_config.json",
      json{
          {"auto_map", {{"AutoModel", "a.B"}}},
          {"fast_tokenizer_files", {"tokenizer.json"}}});
  CHECK(folder.encode("a foo") == Ids{1, 3, 5, 2});
}

TEST_CASE("A text that is too long loses its begin if the folder says so") {
  const Folder folder;
  const auto encode = [&](int64_t most) {
    return folder.open().encode("a b foo b", most);
  };
  CHECK(encode(4) == Ids{1, 3, 4, 2});
  folder.write_tokenizer({{"truncation", {{"direction", "Left"}}}});
  CHECK(encode(4) == Ids{1, 5, 4, 2});
  CHECK(encode(2) == Ids{1, 2});
  CHECK(encode(6) == Ids{1, 3, 4, 5, 4, 2});
  folder.write("tokenizer_config.json", json{{"truncation_side", "right"}});
  CHECK(encode(4) == Ids{1, 3, 4, 2});
  folder.write("tokenizer_config.json", json{{"truncation_side", "left"}});
  CHECK(encode(4) == Ids{1, 5, 4, 2});
  folder.write("tokenizer_config.json", json{{"truncation_side", "middle"}});
  CHECK_THAT(folder.error(), ContainsText("expected left or right"));
}

TEST_CASE("An older tokenizer.json names the type of its model by its fields") {
  const Folder folder;
  folder.write_tokenizer({{"model", {{"type", nullptr}}}});
  CHECK(folder.encode("a foo") == Ids{1, 3, 5, 2});
  folder.write_tokenizer(
      {{"model", {{"type", nullptr}, {"max_input_chars_per_word", nullptr}}}});
  CHECK_THAT(folder.error(), ContainsText("but got BertNormalizer"));
}

TEST_CASE("Numbers of tokens may be far apart without taking memory") {
  const Folder folder;
  folder.write_tokenizer({{"model", {{"vocab", {{"b", (1 << 24) - 1}}}}}});
  CHECK(folder.encode("a b [PAD]") == Ids{1, 3, (1 << 24) - 1, 6, 2});
  const auto tokenizer = folder.open();
  CHECK(tokenizer.vocab_size() == 1 << 24);
  CHECK_FALSE(tokenizer.has(1000));
  THROWS_WITH(tokenizer.piece(1000), "that the vocabulary has, but got 1000");
  folder.write_tokenizer({{"model", {{"vocab", {{"b", 1 << 24}}}}}});
  CHECK_THAT(folder.error(), ContainsText("has the number 16777216"));
}

TEST_CASE("Lines of a vocabulary end without white space, and are UTF-8") {
  const Folder folder;
  folder.write_text(
      "vocab.txt", "[UNK]\n[CLS]\n[SEP]\na \nb\t\r\nfoo\u3000\n\n");
  CHECK(folder.encode("a b foo [MASK]") == Ids{1, 3, 4, 5, 8, 2});
  folder.write_text("vocab.txt", "[UNK]\n[CLS]\n[SEP]\n\xff\n");
  CHECK_THAT(folder.error(), ContainsText("but line 4 is none"));
}

TEST_CASE("A number that two tokens would have is refused") {
  const Folder folder;
  folder.write_text("vocab.txt", "[UNK]\n[CLS]\n[SEP]\na\nb\na\n");
  CHECK_THAT(
      folder.error(),
      ContainsText("would have the number 5, which the token \"a\" has"));
}

} // namespace tokenizer_files_test
