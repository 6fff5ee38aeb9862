// GGUF files in the commands of the program.

#include <models/decoder_golden.h>
#include <models/gguf_models.h>
#include <support/temporary_folder.h>

#include <tools/inspect.h>
#include <tools/text/generate.h>
#include <tools/text/token_bytes.h>
#include <tools/text/tokenizer_file.h>

#include <torch_attention/weights/gguf.h>

#include <nlohmann/json.hpp>

#include <algorithm>
#include <functional>
#include <sstream>
#include <utility>

namespace gguf_file_test {

using namespace torch_attention;
using namespace torch_attention::testing;
using namespace torch_attention::tools;

namespace {

std::string inspected(const std::string& path) {
  std::ostringstream out;
  inspect_file(path, {}, /*as_json=*/false, out);
  return out.str();
}

/// The pieces of SentencePiece.
struct Pieces {
  std::vector<std::string> tokens{"<unk>", "<s>", "</s>"};
  std::vector<int32_t> types{2, 3, 3};
  std::vector<float> scores{0, 0, 0};

  Pieces() {
    for (size_t byte = 0; byte < 256; ++byte) {
      const std::string digits = "0123456789ABCDEF";
      add(std::string("<0x") + digits[byte / 16] + digits[byte % 16] + ">",
          0,
          6);
    }
    for (const auto* piece : {"a", "b", "\u2581", "ab", "\u2581ab"}) {
      add(piece, -static_cast<float>(scores.size()));
    }
  }

  /// Returns the number of the piece.
  size_t add(const std::string& token, float score, int32_t type = 1) {
    tokens.push_back(token);
    types.push_back(type);
    scores.push_back(score);
    return tokens.size() - 1;
  }

  /// Returns a file with this tokenizer alone.
  GgufModelFile file() const {
    GgufModelFile file;
    file.set("tokenizer.ggml.model", std::string("llama"));
    file.set_texts("tokenizer.ggml.tokens", tokens);
    file.set_numbers("tokenizer.ggml.token_type", 5, types);
    file.set_numbers("tokenizer.ggml.scores", 6, scores);
    file.set("tokenizer.ggml.bos_token_id", int64_t{1});
    file.set("tokenizer.ggml.eos_token_id", int64_t{2});
    return file;
  }
};

GgufModelFile scored_tokens() {
  return Pieces().file();
}

/// Returns a file with a tokenizer of GPT-2 alone.
GgufModelFile byte_tokens() {
  GgufModelFile file;
  file.set("tokenizer.ggml.model", std::string("gpt2"));
  file.set("tokenizer.ggml.pre", std::string("llama-bpe"));
  file.set_texts("tokenizer.ggml.tokens", {"a", "b", "ab", "<|begin|>"});
  file.set_numbers(
      "tokenizer.ggml.token_type", 5, std::vector<int32_t>{1, 1, 1, 3});
  file.set_texts("tokenizer.ggml.merges", {"a b"});
  file.set("tokenizer.ggml.bos_token_id", int64_t{3});
  return file;
}

/// Returns a file with a token for each byte as well.
GgufModelFile all_byte_tokens() {
  auto file = byte_tokens();
  auto tokens = tokens_of_bytes(/*as_letters=*/true);
  tokens.emplace_back("ab");
  tokens.emplace_back("<|begin|>");
  std::vector<int32_t> types(tokens.size(), 1);
  types.back() = 3;
  file.set_texts("tokenizer.ggml.tokens", tokens);
  file.set_numbers("tokenizer.ggml.token_type", 5, types);
  file.set("tokenizer.ggml.bos_token_id", int64_t{257});
  return file;
}

/// Returns a file with a tokenizer of BERT alone.
GgufModelFile word_tokens(const std::vector<std::string>& words) {
  std::vector<std::string> tokens{"[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"};
  std::vector<int32_t> types(tokens.size(), 1);
  for (const auto& word : words) {
    tokens.push_back(word);
    types.push_back(1);
  }
  GgufModelFile file;
  file.set("tokenizer.ggml.model", std::string("bert"));
  file.set_texts("tokenizer.ggml.tokens", tokens);
  file.set_numbers("tokenizer.ggml.token_type", 5, types);
  return file;
}

nlohmann::json tokenizer_of(const GgufModelFile& file) {
  const TemporaryFolder folder;
  const auto path = folder.file("model.gguf");
  file.write(path);
  return nlohmann::json::parse(tokenizer_from_gguf(path));
}

/// Returns the added token of a number; null if there is none.
nlohmann::json added_token(const nlohmann::json& tokenizer, size_t id) {
  for (const auto& token : tokenizer["added_tokens"]) {
    if (token["id"] == id) {
      return token;
    }
  }
  return nullptr;
}

std::string tokenizer_refusal(
    GgufModelFile file,
    const std::function<void(GgufModelFile&)>& change) {
  const TemporaryFolder folder;
  const auto path = folder.file("model.gguf");
  change(file);
  file.write(path);
  try {
    tokenizer_from_gguf(path);
  } catch (const c10::Error& error) {
    return error.what_without_backtrace();
  }
  return "nothing was thrown";
}

} // namespace

TEST_CASE("inspect lists the layers of a GGUF file, or says why not") {
  const TemporaryFolder folder;
  const auto path = folder.file("model.gguf");
  auto file = gguf_of_folder(decoder_folder("gemma2"));
  file.write(path);
  CHECK_THAT(
      inspected(path),
      ContainsText("layer 0: 4 heads") && ContainsText("layer 1: 4 heads") &&
          ContainsText("attention_from_pretrained(\"" + path + "\", layer)"));
  file.set("gemma2.attention.scale", 0.5);
  file.write(path);
  CHECK_THAT(
      inspected(path),
      ContainsText("the metadata has \"gemma2.attention.scale\"") &&
          ContainsText("blk.0: layout gguf"));
}

TEST_CASE("generate continues by a GGUF file as by the folder") {
  const TemporaryFolder folder;
  const auto path = folder.file("model.gguf");
  gguf_of_folder(decoder_folder("llama_3_1")).write(path);
  const auto generated = [](const std::string& model) {
    GenerateArguments arguments;
    arguments.folder = model;
    arguments.ids = {"5,6,7"};
    arguments.options.max_new_tokens(20);
    std::ostringstream out;
    std::ostringstream log;
    generate_texts(arguments, out, log);
    return out.str();
  };
  CHECK(generated(path) == generated(decoder_folder("llama_3_1")));
}

TEST_CASE("The tokenizer of a GGUF file is one that was compared") {
  const TemporaryFolder folder;
  const auto path = folder.file("model.gguf");
  auto file = scored_tokens();
  file.write(path);
  auto read = read_tokenizer_file(path);
  CHECK(read.normalizer.has_prefix_space);
  CHECK(read.around.before == std::vector<int64_t>{1});
  CHECK(read.around.after.empty());
  CHECK(read.bytes.at(3 + 65) == "A");
  CHECK(read.bytes.at(263) == " ab");
  file.set_flag("tokenizer.ggml.add_space_prefix", false);
  file.set_flag("tokenizer.ggml.add_bos_token", false);
  file.set_flag("tokenizer.ggml.add_eos_token", true);
  file.write(path);
  read = read_tokenizer_file(path);
  CHECK_FALSE(read.normalizer.has_prefix_space);
  CHECK(read.around.before.empty());
  CHECK(read.around.after == std::vector<int64_t>{2});
  all_byte_tokens().write(path);
  read = read_tokenizer_file(path);
  CHECK(read.around.before == std::vector<int64_t>{257});
  CHECK_FALSE(read.normalizer.has_nfc);
  byte_tokens().write(path);
  THROWS_WITH(read_tokenizer_file(path), "expected a token for each byte");
}

TEST_CASE("A tokenizer that is contradictory or not known is refused") {
  using File = GgufModelFile;
  const auto check = [](const File& file,
                        const char* text,
                        const std::function<void(File&)>& change) {
    CHECK_THAT(tokenizer_refusal(file, change), ContainsText(text));
  };
  const auto bytes = byte_tokens();
  const auto scored = scored_tokens();
  const std::string k = "tokenizer.ggml.";
  for (const std::string name : {"model", "pre", "tokens", "merges"}) {
    check(bytes, name.c_str(), [&](File& file) {
      file.metadata.erase(k + name);
    });
  }
  for (const std::string name : {"token_type", "scores", "bos_token_id"}) {
    check(scored, name.c_str(), [&](File& file) {
      file.metadata.erase(k + name);
    });
  }
  check(bytes, "gpt-2, llama-bpe or qwen2", [&](File& file) {
    file.set(k + "pre", std::string("smollm"));
  });
  check(bytes, "but got \"t5\"", [&](File& file) {
    file.set(k + "model", std::string("t5"));
  });
  check(bytes, "4 elements of \"tokenizer.ggml.token_type\"", [&](File& file) {
    file.set_numbers(k + "token_type", 5, std::vector<int32_t>{1, 1, 1});
  });
  check(bytes, "a type from 1 to 6", [&](File& file) {
    file.set_numbers(k + "token_type", 5, std::vector<int32_t>{1, 1, 1, 7});
  });
  check(bytes, "are both \"a\"", [&](File& file) {
    file.set_texts(k + "tokens", {"a", "a", "ab", "x"});
  });
  check(bytes, "expected UTF-8", [&](File& file) {
    file.set_texts(k + "tokens", {"a", "\xFF", "ab", "x"});
  });
  check(bytes, "two tokens that make a third", [&](File& file) {
    file.set_texts(k + "merges", {"a b", "b a"});
  });
  check(bytes, "a token from 0 to 3", [&](File& file) {
    file.set(k + "bos_token_id", int64_t{4});
  });
  check(bytes, "one for each row", [](File& file) {
    file.tensors["token_embd.weight"] = torch::ones({5, 2});
  });
  check(bytes, "the metadata has \"tokenizer.ggml.other\"", [&](File& file) {
    file.set(k + "other", int64_t{1});
  });
  check(scored, "4 elements", [&](File& file) {
    file.set_texts(k + "tokens", {"a", "b", "ab", "x"});
  });
  check(scored, "remove_extra_whitespaces", [&](File& file) {
    file.set_flag(k + "remove_extra_whitespaces", true);
  });
  check(scored, "precompiled_charsmap", [&](File& file) {
    file.set(k + "precompiled_charsmap", std::string("x"));
  });
}

TEST_CASE("Scores without an order, or of another model, are refused") {
  Pieces pieces;
  pieces.add("ba", -7);
  pieces.add("\u2581a", -7);
  CHECK(tokenizer_of(pieces.file())["model"]["merges"].size() == 5);
  auto equal = pieces;
  std::fill(equal.scores.begin(), equal.scores.end(), -1000.0F);
  const auto refusal = [](const Pieces& changed) {
    return tokenizer_refusal(changed.file(), [](GgufModelFile&) {});
  };
  CHECK_THAT(
      refusal(equal),
      ContainsText("that order the merges of pieces, but got -1000 for all 4"));
  pieces.scores.back() = -7.25;
  CHECK_THAT(
      refusal(pieces),
      ContainsText("whole numbers") && ContainsText("-7.25 for token 265"));
  // Tokens that are not normal have no probability.
  pieces.types.back() = 4;
  tokenizer_of(pieces.file());
}

TEST_CASE("A piece that takes too long is refused") {
  Pieces pieces;
  pieces.add(std::string(1024, 'a'), -8);
  tokenizer_of(pieces.file());
  pieces.add(std::string(1025, 'a'), -9);
  CHECK_THAT(
      tokenizer_refusal(pieces.file(), [](GgufModelFile&) {}),
      ContainsText("at most 1024 bytes") && ContainsText("for token 265"));
}

TEST_CASE("A normal piece that no two pieces make is a symbol of the user") {
  Pieces pieces;
  const auto table = pieces.add("<table>", 0);
  const auto longer = pieces.add("<table>a", 0);
  auto tokenizer = tokenizer_of(pieces.file());
  for (const auto id : {table, longer}) {
    const auto added = added_token(tokenizer, id);
    CHECK(added["content"] == pieces.tokens[id]);
    CHECK(added["special"] == false);
  }
  CHECK(added_token(tokenizer, 263).is_null());
  const auto spaces = pieces.add("\u2581\u2581x\u2581", 0);
  CHECK_THAT(
      tokenizer_refusal(pieces.file(), [](GgufModelFile&) {}),
      ContainsText("expected two tokens that make the token 266"));
  auto file = pieces.file();
  file.set_flag("tokenizer.ggml.add_space_prefix", false);
  tokenizer = tokenizer_of(file);
  CHECK(added_token(tokenizer, spaces)["content"] == "  x ");
  CHECK(tokenizer["model"]["vocab"]["  x "] == spaces);
  CHECK_FALSE(tokenizer["model"]["vocab"].contains("\u2581\u2581x\u2581"));
}

TEST_CASE("Control tokens that are written as normal ones are special") {
  Pieces pieces;
  pieces.types[2] = 1;
  const auto turn = pieces.add("<start_of_turn>", 0);
  const auto end = pieces.add("<|end|>", 0);
  const auto pad = pieces.add("padding", 0);
  const auto defined = pieces.add("<mask>", 0, 4);
  auto file = pieces.file();
  file.set("tokenizer.ggml.padding_token_id", static_cast<int64_t>(pad));
  file.set("tokenizer.ggml.mask_token_id", static_cast<int64_t>(defined));
  // Beyond the vocabulary, as some configurations have them.
  file.set("tokenizer.ggml.cls_token_id", int64_t{99'999});
  auto tokenizer = tokenizer_of(file);
  for (const auto id : {size_t{2}, turn, end, pad, defined}) {
    CAPTURE(id);
    CHECK(added_token(tokenizer, id)["special"] == true);
  }
  // A piece of texts that fills them is found in them by merges.
  for (const int64_t id : {259, 262}) {
    file.set("tokenizer.ggml.padding_token_id", id);
    CHECK(added_token(tokenizer_of(file), id).is_null());
  }
  auto bytes = byte_tokens();
  bytes.set_texts(
      "tokenizer.ggml.tokens", {"a", "b", "ab", "<|begin|>", "<|im_end|>"});
  bytes.set_numbers(
      "tokenizer.ggml.token_type", 5, std::vector<int32_t>{1, 1, 1, 1, 1});
  bytes.set("tokenizer.ggml.padding_token_id", int64_t{2});
  tokenizer = tokenizer_of(bytes);
  CHECK(added_token(tokenizer, 2).is_null());
  CHECK(added_token(tokenizer, 3)["special"] == true);
  CHECK(added_token(tokenizer, 4)["special"] == true);
}

TEST_CASE("The tokenizer of Phi-3, which strips texts, is refused") {
  const auto scored = scored_tokens();
  for (const auto& [key, value] :
       {std::pair{"general.architecture", "phi3"},
        std::pair{"general.name", "Phi-3 Mini"}}) {
    CHECK_THAT(
        tokenizer_refusal(
            scored,
            [&, key = key, value = value](GgufModelFile& file) {
              file.set(key, std::string(value));
            }),
        ContainsText(std::string("but got \"") + value + "\" as \"" + key));
  }
}

TEST_CASE("Both texts of a pair are surrounded") {
  auto file = scored_tokens();
  file.set_flag("tokenizer.ggml.add_eos_token", true);
  std::vector<std::string> names;
  std::vector<int> types;
  const auto tokenizer = tokenizer_of(file);
  for (const auto& part : tokenizer["post_processor"]["pair"]) {
    const auto& value = part.begin().value();
    names.push_back(value["id"]);
    types.push_back(value["type_id"]);
  }
  CHECK(
      names ==
      std::vector<std::string>{"<s>", "A", "</s>", "<s>", "B", "</s>"});
  CHECK(types == std::vector<int>{0, 0, 0, 1, 1, 1});
}

TEST_CASE("A file says whether words of BERT lose case and accents") {
  auto file = word_tokens({"\u2581a", "\u2581\u00E9", "B"});
  file.set_flag("tokenizer.ggml.add_sep_token", false);
  CHECK_THAT(
      tokenizer_refusal(file, [](GgufModelFile&) {}),
      ContainsText("expected a tokenizer of BERT without upper case"));
  const auto normalizer = [&] { return tokenizer_of(file)["normalizer"]; };
  file.set_flag("tokenizer.ggml.normalizer.lowercase", false);
  CHECK(normalizer()["lowercase"] == false);
  CHECK(normalizer()["strip_accents"].is_null());
  file.set_flag("tokenizer.ggml.normalizer.strip_accents", true);
  file.set_flag("tokenizer.ggml.add_sep_token", true);
  CHECK(normalizer()["strip_accents"] == true);
  CHECK(normalizer()["lowercase"] == false);
  const auto tokenizer = tokenizer_of(file);
  for (size_t id = 0; id < 5; ++id) {
    CHECK(added_token(tokenizer, id)["special"] == true);
  }
}

TEST_CASE("Letters that an uncased BERT does not have are known") {
  for (const auto* letter :
       {"\u00C0",
        "\u0126",
        "\u01B0",
        "\u0439",
        "\u03AC",
        "\u1E00",
        "\u1EA1",
        "\u1EF9",
        "\u304C",
        "\u3071",
        "\u30AC",
        "\u30F4",
        "\u30FA",
        "\uAC00",
        "\uD7A3"}) {
    CAPTURE(letter);
    CHECK_THAT(
        tokenizer_refusal(word_tokens({letter}), [](GgufModelFile&) {}),
        ContainsText("without upper case and accents"));
  }
  tokenizer_of(word_tokens(
      {"\u00DF",
       "\u0111",
       "\u0142",
       "\u0438",
       "\u1E9A",
       "\u1EFF",
       "\u304B",
       "\u306F",
       "\u30AB",
       "\u30F3",
       "\u1100",
       "\u4E2D"}));
}

} // namespace gguf_file_test
