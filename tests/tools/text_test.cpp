#include <support/close.h>
#include <support/temporary_folder.h>

#include <models/decoder_golden.h>
#include <models/encoder_golden.h>

#include <tools/text/embed.h>
#include <tools/text/generate.h>
#include <tools/text/prepared_text.h>
#include <tools/text/token_bytes.h>
#include <tools/text/tokenizer_file.h>
#include <tools/text/tokens.h>

#include <torch_attention/models/gpt2.h>

#include <nlohmann/json.hpp>

#include <fstream>
#include <sstream>

namespace text_test {

using namespace torch_attention;
using namespace torch_attention::testing;
using namespace torch_attention::tools;

namespace {

std::string joined(const std::vector<int64_t>& ids, const char* separator) {
  std::string text;
  for (const auto id : ids) {
    text += (text.empty() ? "" : separator) + std::to_string(id);
  }
  return text;
}

std::vector<int64_t> greedy_of(const std::string& name, int64_t b) {
  const auto row = expected_of(name, "greedy")[b].contiguous();
  return {row.data_ptr<int64_t>(), row.data_ptr<int64_t>() + row.numel()};
}

std::string generate(const GenerateArguments& arguments) {
  std::ostringstream out;
  std::ostringstream log;
  generate_texts(arguments, out, log);
  CHECK_THAT(log.str(), ContainsText("prompt: ") && ContainsText("text: "));
  return out.str();
}

GenerateArguments arguments_of(const std::string& name) {
  GenerateArguments arguments;
  arguments.folder = decoder_folder(name);
  arguments.ignores_stop = true;
  for (const auto& prompt : prompts_of(name)) {
    arguments.ids.push_back(joined(prompt, ","));
  }
  return arguments;
}

std::vector<std::string> lines_of_text(const std::string& text) {
  std::istringstream stream(text);
  std::vector<std::string> lines;
  for (std::string line; std::getline(stream, line);) {
    lines.push_back(line);
  }
  return lines;
}

/// A GPT-2 whose tokens are bytes.
void save_byte_model(const std::string& folder) {
  torch::manual_seed(1);
  models::Gpt2 model(models::Gpt2Options()
                         .vocab_size(256)
                         .context_length(32)
                         .emb_dim(16)
                         .n_heads(2)
                         .n_layers(1));
  models::save_gpt2(*model, folder, {{"tokens", "bytes"}});
}

/// Texts without line breaks, which have vectors.
std::pair<std::vector<std::string>, torch::Tensor> lines_with_vectors(
    const std::string& name) {
  const auto texts = texts_with_vectors();
  const auto vectors = encoder_tensor(name + "/expected", "vectors");
  std::vector<std::string> lines;
  std::vector<int64_t> rows;
  for (size_t i = 0; i < texts.size(); ++i) {
    if (texts[i].find_first_of("\n\r") == std::string::npos) {
      lines.push_back(texts[i]);
      rows.push_back(static_cast<int64_t>(i));
    }
  }
  return {lines, vectors.index_select(0, torch::tensor(rows))};
}

/// Returns a vocabulary with a token for each byte.
nlohmann::json byte_vocabulary(bool as_letters) {
  auto vocabulary = nlohmann::json::object();
  for (const auto& token : tokens_of_bytes(as_letters)) {
    vocabulary[token] = vocabulary.size();
  }
  return vocabulary;
}

/// A tokenizer.json of GPT-2's kind.
nlohmann::json gpt2_tokenizer() {
  return {
      {"model",
       {{"type", "BPE"},
        {"dropout", nullptr},
        {"continuing_subword_prefix", ""},
        {"vocab", byte_vocabulary(/*as_letters=*/true)},
        {"merges", nlohmann::json::array()}}},
      {"normalizer", nullptr},
      {"pre_tokenizer", {{"type", "ByteLevel"}, {"add_prefix_space", false}}},
      {"post_processor", {{"type", "ByteLevel"}}},
      {"decoder", {{"type", "ByteLevel"}}},
      {"added_tokens", nlohmann::json::array()}};
}

/// A tokenizer.json of Gemma's kind.
nlohmann::json gemma_tokenizer() {
  auto tokenizer = gpt2_tokenizer();
  tokenizer["model"]["vocab"] = byte_vocabulary(/*as_letters=*/false);
  tokenizer["model"]["byte_fallback"] = true;
  tokenizer["normalizer"] = nlohmann::json::parse(
      R"({"type": "Replace", "pattern": {"String": " "}, "content": "▁"})");
  tokenizer["pre_tokenizer"] = nlohmann::json::parse(
      R"({"type": "Split", "pattern": {"String": " "},
          "behavior": "MergedWithPrevious", "invert": false})");
  tokenizer["post_processor"] = nullptr;
  tokenizer["decoder"] = {{"type", "ByteFallback"}};
  return tokenizer;
}

nlohmann::json added_token(
    int64_t id,
    const std::string& content,
    bool is_normalized) {
  return {
      {"id", id},
      {"content", content},
      {"normalized", is_normalized},
      {"special", !is_normalized}};
}

TokenizerFile read_tokenizer(
    const nlohmann::json& tokenizer,
    const nlohmann::json& config = nullptr) {
  const TemporaryFolder folder;
  const auto path = folder.file("tokenizer.json");
  std::ofstream(path) << tokenizer;
  if (!config.is_null()) {
    std::ofstream(folder.file("tokenizer_config.json")) << config;
  }
  return read_tokenizer_file(path);
}

/// Returns the message with which a file is refused, or nothing.
std::string refusal_of(
    const nlohmann::json& tokenizer,
    const nlohmann::json& config = nullptr) {
  try {
    read_tokenizer(tokenizer, config);
  } catch (const c10::Error& error) {
    return error.what_without_backtrace();
  }
  return "";
}

} // namespace

TEST_CASE("generate prints the tokens of transformers") {
  const auto* name = GENERATE("llama", "gpt2", "gemma3");
  auto arguments = arguments_of(name);
  REQUIRE(arguments.ids.size() > 1);
  SECTION("of a batch") {
    const auto lines = lines_of_text(generate(arguments));
    REQUIRE(lines.size() == arguments.ids.size());
    for (size_t b = 0; b < lines.size(); ++b) {
      CHECK(lines[b] == joined(greedy_of(name, static_cast<int64_t>(b)), " "));
    }
  }
  SECTION("of a single one, as it grows") {
    arguments.ids.resize(1);
    CHECK(generate(arguments) == joined(greedy_of(name, 0), " ") + "\n");
  }
  SECTION("as JSON") {
    arguments.as_json = true;
    const auto lines = lines_of_text(generate(arguments));
    REQUIRE(lines.size() == arguments.ids.size());
    const auto json = nlohmann::json::parse(lines[1]);
    CHECK(json["ids"] == greedy_of(name, 1));
    CHECK_FALSE(json.contains("text"));
  }
  SECTION("up to one that ends a text") {
    arguments.ids.resize(1);
    const auto greedy = greedy_of(name, 0);
    arguments.options.stop_tokens({greedy[2]});
    const auto line = lines_of_text(generate(arguments)).at(0);
    const auto end = std::find(greedy.begin(), greedy.end(), greedy[2]) + 1;
    CHECK(line == joined({greedy.begin(), end}, " "));
  }
}

TEST_CASE("generate names what it does not use of a folder") {
  const TemporaryFolder folder;
  save_byte_model(folder.path());
  GenerateArguments arguments;
  arguments.folder = folder.path();
  arguments.prompts = {"The"};
  arguments.options.max_new_tokens(1);
  const auto log_with = [&](const char* config) {
    std::ofstream(folder.file("generation_config.json")) << config;
    std::ostringstream out;
    std::ostringstream log;
    generate_texts(arguments, out, log);
    return log.str();
  };
  CHECK_THAT(
      log_with(
          R"({"eos_token_id": 5, "repetition_penalty": 1.0,
              "min_new_tokens": 0, "suppress_tokens": [],
              "do_sample": false, "forced_eos_token_id": null})"),
      !ContainsText("note: "));
  CHECK_THAT(
      log_with(
          R"({"repetition_penalty": 1.5, "suppress_tokens": [5],
              "forced_eos_token_id": 0, "num_beams": 1})"),
      ContainsText("note: forced_eos_token_id = 0, repetition_penalty = 1.5, "
                   "suppress_tokens = [5] of"));
}

TEST_CASE("generate continues texts whose tokens are bytes") {
  const TemporaryFolder folder;
  save_byte_model(folder.path());
  GenerateArguments arguments;
  arguments.folder = folder.path();
  arguments.prompts = {"The"};
  arguments.options.max_new_tokens(5);
  const auto text = generate(arguments);
  arguments.as_json = true;
  const auto json = nlohmann::json::parse(generate(arguments));
  arguments.as_json = false;
  CHECK(json["ids"].size() == 5);
  CHECK(json["text"].get<std::string>() + "\n" == text);
  SECTION("which their ids continue alike") {
    arguments.prompts.clear();
    arguments.ids = {"84,104,101"};
    CHECK(generate(arguments) == text);
  }
  SECTION("several at once") {
    arguments.prompts = {"The", "An"};
    CHECK(generate(arguments).rfind(text, 0) == 0);
  }
  SECTION("without the token that ends them") {
    arguments.options.stop_tokens({json["ids"][0].get<int64_t>()});
    CHECK(generate(arguments) == "\n");
  }
}

TEST_CASE("generate says what it lacks") {
  GenerateArguments arguments;
  arguments.folder = decoder_folder("llama");
  arguments.as_text = true;
  THROWS_WITH(generate(arguments), "expected a file");
  arguments.as_text = false;
  THROWS_WITH(generate(arguments), "--prompt or --ids");
  arguments.ids = {"1;2"};
  THROWS_WITH(generate(arguments), "expected whole numbers in --ids");
  arguments.ids = {""};
  THROWS_WITH(generate(arguments), "at least one token in --ids");
  arguments.prompts = {"Once"};
  THROWS_WITH(generate(arguments), "give tokens by --ids");
  const TemporaryFolder folder;
  save_byte_model(folder.path());
  arguments.folder = folder.path();
  arguments.prompts = {""};
  THROWS_WITH(generate(arguments), "expected text in each --prompt");
}

TEST_CASE("embed makes the vectors of sentence-transformers") {
  const auto* name =
      GENERATE(from_range(std::begin(kEncoders), std::end(kEncoders)));
  CAPTURE(name);
  const auto [lines, expected] = lines_with_vectors(name);
  REQUIRE(lines.size() > 10);
  const TemporaryFolder folder;
  EmbedArguments arguments;
  arguments.folder = encoder_folder(name);
  arguments.file = folder.file("lines.txt");
  std::ofstream file(arguments.file, std::ios::binary);
  for (const auto& line : lines) {
    file << line << "\n";
  }
  file.close();
  std::ostringstream out;
  arguments.output = folder.file("vectors.safetensors");
  embed_lines(arguments, out);
  const auto vectors = read_weights(arguments.output)["vectors"];
  CHECK_THAT(vectors, IsCloseTo(expected, {0, 1e-5}));
  CHECK(out.str().empty());

  SECTION("and prints them with all digits") {
    arguments.output.clear();
    embed_lines(arguments, out);
    const auto printed = lines_of_text(out.str());
    REQUIRE(printed.size() == lines.size());
    const auto row =
        nlohmann::json::parse(printed[3]).get<std::vector<float>>();
    CHECK(torch::tensor(row).equal(vectors[3]));
  }
}

TEST_CASE("embed says what it cannot read") {
  const TemporaryFolder folder;
  std::ostringstream out;
  EmbedArguments arguments;
  arguments.folder = encoder_folder("bert");
  arguments.file = folder.file("none.txt");
  THROWS_WITH(embed_lines(arguments, out), "none.txt");
  std::ofstream(folder.file("none.txt")).close();
  THROWS_WITH(embed_lines(arguments, out), "has no lines");
  arguments.folder = decoder_folder("llama");
  THROWS_WITH(embed_lines(arguments, out), "tokenizer.json");
}

TEST_CASE("tokens prints those of each line") {
  std::istringstream in("the cat\n\n");
  std::ostringstream out;
  print_tokens(encoder_folder("bert"), in, out);
  const auto lines = lines_of_text(out.str());
  REQUIRE(lines.size() == 2);
  CHECK(lines[1] == "2,3");
  CHECK(lines[0].rfind("2,", 0) == 0);
}

TEST_CASE("A tokenizer.json says what surrounds texts") {
  auto tokenizer = gpt2_tokenizer();
  CHECK(read_tokenizer(tokenizer).before.empty());
  CHECK_FALSE(read_tokenizer(tokenizer).has_nfc);
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
  CHECK(file.has_nfc);
  CHECK(file.before == std::vector<int64_t>{1, 5});
  CHECK(file.after == std::vector<int64_t>{2});
  tokenizer["post_processor"] = nlohmann::json::parse(
      R"({"type": "RobertaProcessing", "cls": ["<s>", 0], "sep": ["</s>", 2]})");
  CHECK(read_tokenizer(tokenizer).before == std::vector<int64_t>{0});
  CHECK(read_tokenizer(tokenizer).after == std::vector<int64_t>{2});
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
  CHECK(prepared_text(file, "a b") == "a b");
  THROWS_WITH(
      prepared_text(file, std::string("a\0b", 3)),
      "expected a text without zero bytes, but got one at 1");
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
  CHECK(prepared_text(file, "ab bc xz <s>") == "ab bc xz <s>");
  THROWS_WITH(
      prepared_text(file, "a xyz"), "a text with \" xy\" would have other");
  model["ignore_merges"] = true;
  CHECK(read_tokenizer(tokenizer).refused_texts.empty());
  model["ignore_merges"] = false;
  model["merges"] = nlohmann::json::array({"a x"});
  CHECK_THAT(
      refusal_of(tokenizer),
      ContainsText("two tokens that make a third") && ContainsText("a x"));
}

TEST_CASE("Texts with added tokens that normalizing changes are refused") {
  auto tokenizer = gemma_tokenizer();
  tokenizer["added_tokens"] = {
      added_token(256, "<x y>", true),
      added_token(257, "▁▁", true),
      added_token(258, "<z w>", false),
      added_token(259, "▁▁▁", false),
      added_token(260, "<n>", true)};
  auto file = read_tokenizer(tokenizer);
  CHECK(file.refused_texts == std::vector<std::string>{"<x▁y>", "▁▁"});
  CHECK(prepared_text(file, "<z w>▁<n>") == "<z w>▁<n>");
  for (const auto* text : {"a<x y>", "a<x▁y>", "a  b", "a▁ b"}) {
    CAPTURE(text);
    THROWS_WITH(prepared_text(file, text), "would have other tokens here");
  }
  tokenizer = gpt2_tokenizer();
  tokenizer["normalizer"] = {{"type", "NFC"}};
  tokenizer["added_tokens"] = {
      added_token(256, "e\u0301x", true),
      added_token(257, "e\u0301y", false),
      added_token(258, "\u00e9", false),
      added_token(259, "<|end|>", false)};
  file = read_tokenizer(tokenizer);
  CHECK(
      prepared_text(file, "o\u0308 \u00e9 <|end|>a") ==
      "\u00f6 \u00e9 <|end|>a");
  for (const auto* text :
       {"\u00e9x",
        "e\u0301x",
        "e\u0301y",
        "e\u0301",
        "\u00e9\u0323",
        "<|end|>\u0338"}) {
    CAPTURE(text);
    THROWS_WITH(prepared_text(file, text), "would have other tokens here");
  }
}

TEST_CASE("A tokenizer_config.json that asks for other tokens is refused") {
  auto tokenizer = gpt2_tokenizer();
  tokenizer["added_tokens"] = {
      added_token(256, "<s>", false), added_token(257, "</s>", false)};
  const auto check = [&](const char* config, const char* message) {
    CAPTURE(config);
    const auto refusal = refusal_of(tokenizer, nlohmann::json::parse(config));
    if (std::string(message).empty()) {
      CHECK(refusal.empty());
    } else {
      CHECK_THAT(
          refusal,
          ContainsText(message) && ContainsText("tokenizer_config.json"));
    }
  };
  check("{}", "");
  check(
      R"({"tokenizer_class": "GPT2Tokenizer", "add_prefix_space": false,
          "add_bos_token": false, "bos_token": "<s>", "pad_token": null,
          "eos_token": {"content": "</s>", "lstrip": false},
          "additional_special_tokens": ["<s>"], "model_max_length": 1024,
          "added_tokens_decoder": {
              "256": {"content": "<s>", "normalized": false, "special": true},
              "257": {"content": "</s>", "normalized": true}}})",
      "");
  check(R"({"tokenizer_class": "LlamaTokenizerFast"})", "");
  check(R"({"add_prefix_space": true})", "expected add_prefix_space = false");
  check(R"({"split_special_tokens": true})", "split_special_tokens = false");
  check(
      R"({"add_bos_token": true, "bos_token": "<s>"})", "but got [256] and []");
  check(
      R"({"add_eos_token": true, "eos_token": {"content": "</s>"}})",
      "but got [] and [257]");
  check(R"({"add_bos_token": true})", "expected a token as \"bos_token\"");
  check(R"({"add_bos_token": true, "bos_token": null})", "");
  check(
      R"({"tokenizer_class": "Qwen2Tokenizer"})",
      "PreTrainedTokenizerFast or GPT2Tokenizer or RobertaTokenizer");
  check(
      R"({"tokenizer_class": "RobertaTokenizer"})", "but got [256] and [257]");
  check(
      R"({"additional_special_tokens": ["<x>"]})",
      "one of the added_tokens as \"additional_special_tokens\"");
  check(
      R"({"extra_special_tokens": {"image_token": "<x>"}})",
      "one of the added_tokens as \"extra_special_tokens\"");
  check(
      R"({"added_tokens_decoder": {"258": {"content": "<x>"}}})",
      "one of the added_tokens as \"added_tokens_decoder\"");
  check(R"({"image_token": "<x>"})", "one of the added_tokens as");
  check(
      R"({"mask_token": {"content": "<s>", "lstrip": true}})",
      "expected lstrip = false of the token in \"mask_token\"");
  check(
      R"({"tokenizer_class": "GPT2Tokenizer", "bos_token": "<s>",
          "added_tokens_decoder": {"256": {"content": "<s>"}}})",
      "the token \"</s>\" in \"added_tokens_decoder\"");

  tokenizer["post_processor"] = nlohmann::json::parse(
      R"({"type": "RobertaProcessing", "cls": ["<s>", 256],
          "sep": ["</s>", 257]})");
  check(R"({"tokenizer_class": "RobertaTokenizer"})", "");
  check(R"({"add_bos_token": false})", "but got [] and []");
  tokenizer = gemma_tokenizer();
  check(R"({"tokenizer_class": "GemmaTokenizer"})", "");
  check(R"({"tokenizer_class": "LlamaTokenizer"})", "or GemmaTokenizer");
}

} // namespace text_test
