// Files next to a tokenizer.json change tokens, as AutoTokenizer of
// transformers 5.24 does.

#include <support/test.h>

#include <tools/tokenizer_folder.h>

namespace tokenizer_config_test {

using namespace torch_attention::testing;
using namespace torch_attention::tools;

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
  // replaces the regular expression of tokenizer.json
  check(R"({"fix_mistral_regex": true})", "fix_mistral_regex = false");
  // transformers drops these where there is a tokenizer.json.
  check(
      R"({"add_bos_token": true, "add_eos_token": true, "bos_token": "<s>",
          "eos_token": "</s>"})",
      "");
  check(
      R"({"tokenizer_class": "Qwen2Tokenizer"})",
      "PreTrainedTokenizerFast or GPT2Tokenizer or CodeGenTokenizer or "
      "RobertaTokenizer");
  check(
      R"({"tokenizer_class": "RobertaTokenizer"})", "but got [256] and [257]");
  check(
      R"({"tokenizer_class": "RobertaTokenizer", "cls_token": null})",
      "expected a token as \"cls_token\"");
  check(
      R"({"fast_tokenizer_files": ["tokenizer.4.0.0.json"]})",
      "but got \"tokenizer.4.0.0.json\", which is not read");
  check(R"({"auto_map": {"AutoTokenizer": ["a.B"]}})", "names Python code");
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
  check(R"({"add_bos_token": false})", "");
  tokenizer = gemma_tokenizer();
  check(R"({"tokenizer_class": "GemmaTokenizer"})", "");
  check(R"({"tokenizer_class": "LlamaTokenizer"})", "or GemmaTokenizer");
}

TEST_CASE("Tokens of an older file have to be in tokenizer.json") {
  auto tokenizer = gpt2_tokenizer();
  tokenizer["added_tokens"] = {added_token(256, "<s>", false)};
  const TokenizerFolder folder(tokenizer);
  folder.write("added_tokens.json", {{"<s>", 256}});
  CHECK(folder.refusal().empty());
  for (const auto& tokens :
       {nlohmann::json{{"zz", 257}}, nlohmann::json{{"<s>", 257}}}) {
    folder.write("added_tokens.json", tokens);
    CHECK_THAT(
        folder.refusal(),
        ContainsText("added_tokens.json\": expected one of the added_tokens"));
  }
  // It is not read if a newer one has tokens.
  folder.write(
      "tokenizer_config.json",
      {{"added_tokens_decoder", {{"256", {{"content", "<s>"}}}}}});
  CHECK(folder.refusal().empty());
}

TEST_CASE("The class of a tokenizer is the one that AutoTokenizer chooses") {
  // How Llama 3 splits texts, as its class does not.
  auto tokenizer = gpt2_tokenizer();
  tokenizer["pre_tokenizer"] = nlohmann::json::parse(
      R"json({"type": "Sequence", "pretokenizers": [
          {"type": "Split", "behavior": "Isolated", "invert": false,
           "pattern": {"Regex": "(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|\\p{N}{1,3}| ?[^\\s\\p{L}\\p{N}]+[\\r\\n]*|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+"}},
          {"type": "ByteLevel", "add_prefix_space": false, "use_regex": false}]})json");
  const TokenizerFolder llama3(tokenizer);
  const auto refusal = [](const TokenizerFolder& folder,
                          const char* type,
                          const nlohmann::json& named,
                          const nlohmann::json& of_model = nullptr) {
    folder.write(
        "config.json", {{"model_type", type}, {"tokenizer_class", of_model}});
    folder.write("tokenizer_config.json", {{"tokenizer_class", named}});
    return folder.refusal();
  };
  const auto* generic = "PreTrainedTokenizerFast";
  for (const auto* type : {"llama", "mistral", "phi3", "gpt2", "qwen3"}) {
    CAPTURE(type);
    CHECK(refusal(llama3, type, generic).empty());
  }
  for (const auto* type : {"llama", "mistral", "phi3"}) {
    CAPTURE(type);
    CHECK(refusal(llama3, type, nullptr).empty());
    CHECK(refusal(llama3, type, "LlamaTokenizerFast").empty());
  }
  // A class of a type whose own is generic does not count.
  CHECK(refusal(llama3, "phi3", "GPT2Tokenizer").empty());
  CHECK_THAT(
      refusal(llama3, "llama", "GPT2Tokenizer"),
      ContainsText("but got \"GPT2Tokenizer\", by it and the model_type"));
  CHECK_THAT(
      refusal(llama3, "llama", nullptr, "GPT2TokenizerFast"),
      ContainsText("but got \"GPT2Tokenizer\""));
  CHECK_THAT(
      refusal(llama3, "gpt2", nullptr),
      ContainsText("but got \"GPT2Tokenizer\""));
  for (const auto* named : {generic, "GPT2Tokenizer", "LlamaTokenizer"}) {
    CAPTURE(named);
    CHECK_THAT(
        refusal(llama3, "qwen2", named),
        ContainsText("but got \"Qwen2Tokenizer\""));
  }
  CHECK_THAT(
      refusal(llama3, "gpt_neox", nullptr),
      ContainsText("but got \"the class of this model_type\""));

  const TokenizerFolder gpt2(gpt2_tokenizer());
  CHECK(refusal(gpt2, "gpt2", nullptr).empty());
  CHECK(refusal(gpt2, "phi", "CodeGenTokenizer").empty());
  CHECK_THAT(
      refusal(gpt2, "roberta", nullptr),
      ContainsText("expected a token as \"cls_token\""));
  CHECK_THAT(
      refusal(gpt2, "bart", "BartTokenizerFast"),
      ContainsText("expected a token as \"cls_token\""));
  auto prepends = gemma_tokenizer();
  prepends["normalizer"] = {
      {"type", "Sequence"},
      {"normalizers",
       {{{"type", "Prepend"}, {"prepend", "▁"}}, prepends["normalizer"]}}};
  const TokenizerFolder llama2(prepends);
  llama2.write("config.json", {{"model_type", "mistral"}});
  llama2.write(
      "tokenizer_config.json",
      {{"tokenizer_class", "LlamaTokenizer"}, {"add_prefix_space", false}});
  CHECK(llama2.refusal().empty());
  const TokenizerFolder gemma(gemma_tokenizer());
  CHECK(refusal(gemma, "gemma3", nullptr).empty());
  CHECK_THAT(
      refusal(gemma, "llama", "LlamaTokenizer"),
      ContainsText("but got \"LlamaTokenizer\""));
}

TEST_CASE("Tokens that only a class has are refused in texts") {
  const TokenizerFolder folder(gpt2_tokenizer());
  folder.write("config.json", {{"model_type", "gpt2"}});
  CHECK(shown_parts(folder.read(), "a") == "a");
  THROWS_WITH(
      text_parts(folder.read(), "a<|endoftext|>"),
      "a text with \"<|endoftext|>\" would have other tokens");
  folder.write("config.json", {{"model_type", "llama"}});
  CHECK(shown_parts(folder.read(), "<|endoftext|>") == "<|endoftext|>");
}

TEST_CASE("A tokenizer of WordPiece is refused by its own reason") {
  const TokenizerFolder folder(
      {{"model", {{"type", "WordPiece"}}},
       {"normalizer", {{"type", "BertNormalizer"}}},
       {"pre_tokenizer", {{"type", "BertPreTokenizer"}}}});
  folder.write(
      "tokenizer_config.json", {{"tokenizer_class", "BertJapaneseTokenizer"}});
  THROWS_WITH(folder.encode("a"), "but got \"BertJapaneseTokenizer\"");
}

} // namespace tokenizer_config_test
