// GGUF files in the commands of the program.

#include <models/decoder_golden.h>
#include <models/gguf_models.h>
#include <support/temporary_folder.h>

#include <tools/inspect.h>
#include <tools/text/generate.h>
#include <tools/text/token_bytes.h>
#include <tools/text/tokenizer_file.h>

#include <torch_attention/weights/gguf.h>

#include <functional>
#include <sstream>

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

/// Returns a file with a tokenizer of SentencePiece alone.
GgufModelFile scored_tokens() {
  GgufModelFile file;
  std::vector<std::string> tokens{"<unk>", "<s>", "</s>"};
  std::vector<int32_t> types{2, 3, 3};
  std::vector<float> scores{0, 0, 0};
  for (size_t byte = 0; byte < 256; ++byte) {
    const std::string digits = "0123456789ABCDEF";
    tokens.push_back(
        std::string("<0x") + digits[byte / 16] + digits[byte % 16] + ">");
    types.push_back(6);
    scores.push_back(0);
  }
  for (const std::string piece : {"a", "b", "\u2581", "ab", "\u2581ab"}) {
    tokens.push_back(piece);
    types.push_back(1);
    scores.push_back(-static_cast<float>(scores.size()));
  }
  file.set("tokenizer.ggml.model", std::string("llama"));
  file.set_texts("tokenizer.ggml.tokens", tokens);
  file.set_numbers("tokenizer.ggml.token_type", 5, types);
  file.set_numbers("tokenizer.ggml.scores", 6, scores);
  file.set("tokenizer.ggml.bos_token_id", int64_t{1});
  file.set("tokenizer.ggml.eos_token_id", int64_t{2});
  return file;
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

} // namespace gguf_file_test
