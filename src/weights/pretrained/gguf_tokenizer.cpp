#include <torch_attention/weights/gguf.h>

#include <check.h>
#include <error_message.h>
#include <weights/files/gguf.h>
#include <weights/files/mapped_file.h>
#include <weights/pretrained/gguf_tokens.h>
#include <weights/text.h>

#include <nlohmann/json.hpp>

#include <cctype>
#include <exception>

namespace torch_attention {

namespace weights::pretrained {

namespace {

/// Throws c10::Error for a tokenizer that removes spaces after special tokens:
/// the metadata do not have it, and llama.cpp knows it by the model's name.
void refuse_phi3(GgufTokens& tokens) {
  for (const auto* key : {"general.architecture", "general.name"}) {
    const auto value = tokens.fields().text(key).value_or("");
    const auto name = in_lower_case(value);
    const auto has = [&](const char* part) {
      const auto place = name.find(part);
      return place != std::string::npos &&
          (place == 0 ||
           std::isalpha(static_cast<unsigned char>(name[place - 1])) == 0);
    };
    TORCH_ATTENTION_CHECK(
        !has("phi3") && !has("phi-3") && !has("phimoe"),
        "expected a tokenizer other than Phi-3's, which removes spaces after "
        "special tokens without saying so in the file, but got \"{}\" as "
        "\"{}\"",
        value,
        key);
  }
}

/// Returns a tokenizer.json, which `tokenizers` of Python reads, too.
nlohmann::json tokenizer_of_gguf(const files::GgufHeader& header) {
  GgufTokens tokens(header);
  nlohmann::json tokenizer = {
      {"version", "1.0"},
      {"truncation", nullptr},
      {"padding", nullptr},
      {"normalizer", nullptr},
      {"post_processor", nullptr}};
  const auto model = tokens.fields().required_text(GgufTokens::key("model"));
  if (model == "gpt2") {
    set_byte_pairs(tokens, tokenizer);
  } else if (model == "llama") {
    refuse_phi3(tokens);
    set_scored_pairs(tokens, tokenizer);
  } else {
    TORCH_ATTENTION_CHECK(
        model == "bert",
        "expected gpt2, llama or bert as \"tokenizer.ggml.model\", but got "
        "\"{}\"",
        model);
    set_word_pieces(tokens, tokenizer);
  }
  tokenizer["added_tokens"] = tokens.added();
  tokens.check_all_read();
  return tokenizer;
}

} // namespace

} // namespace weights::pretrained

std::string tokenizer_from_gguf(const std::string& path) {
  namespace files = weights::files;
  try {
    const auto header = files::read_gguf_header(files::MappedFile::open(path));
    return weights::pretrained::tokenizer_of_gguf(header).dump();
  } catch (const std::exception& error) {
    throw_printable(format_text(
        "tokenizer_from_gguf(\"{}\"): {}",
        escaped(path),
        error_message(error)));
  }
}

} // namespace torch_attention
