// The files of a tokenizer, read as `BertTokenizerFast` of transformers 5
// reads them. Where two files contradict each other, which one counts differs
// between its versions and `tokenizers`: such folders are refused.

#include <models/tokenizer_files.h>

#include <check.h>
#include <models/added_tokens.h>
#include <models/json_fields.h>
#include <models/tokenizer_json.h>
#include <regular_file.h>
#include <torch_attention/weights/gguf.h>

#include <c10/util/Exception.h>

#include <algorithm>
#include <array>
#include <fstream>
#include <string_view>
#include <unordered_map>

namespace torch_attention::models::detail {

namespace {

/// Classes of transformers whose tokens are those of `BertTokenizerFast`; an
/// empty one if nothing names a class.
constexpr std::array<std::string_view, 10> kClasses{
    "",
    "BertTokenizer",
    "ConvBertTokenizer",
    "DPRContextEncoderTokenizer",
    "DPRQuestionEncoderTokenizer",
    "DistilBertTokenizer",
    "ElectraTokenizer",
    "MPNetTokenizer",
    "MobileBertTokenizer",
    "SqueezeBertTokenizer"};

void check_config(const TokenizerConfig& file) {
  const auto& [path, config, name] = file;
  const auto* const found = std::find(kClasses.begin(), kClasses.end(), name);
  TORCH_ATTENTION_CHECK(
      found != kClasses.end() || file.is_generic(),
      "expected the tokenizer_class of a tokenizer of BERT in \"{}\", but "
      "got \"{}\", by it or the config.json",
      path,
      name);
  for (const auto& [field, wanted] :
       {std::pair{"word_tokenizer_type", "basic"},
        std::pair{"subword_tokenizer_type", "wordpiece"}}) {
    const auto type = json_field(config, field, wanted, path);
    TORCH_ATTENTION_CHECK(
        type == wanted,
        "expected a tokenizer with {} = {} in \"{}\", but got {}",
        field,
        wanted,
        path,
        type);
  }
  TORCH_ATTENTION_CHECK(
      !json_field(config, "split_special_tokens", false, path),
      "expected split_special_tokens = false in \"{}\", but got true",
      path);
}

/// Removes white space at the end of a line, as Rust does.
std::u32string without_space_at_end(std::u32string line) {
  const auto is_space = [](char32_t c) {
    return (c >= 0x09 && c <= 0x0D) || c == 0x20 || c == 0x85 || c == 0xA0 ||
        c == 0x1680 || (c >= 0x2000 && c <= 0x200A) || c == 0x2028 ||
        c == 0x2029 || c == 0x202F || c == 0x205F || c == 0x3000;
  };
  while (!line.empty() && is_space(line.back())) {
    line.pop_back();
  }
  return line;
}

void read_vocabulary(const std::string& path, TokenizerFiles& files) {
  check_regular_file(path);
  std::ifstream file(path, std::ios::binary);
  TORCH_ATTENTION_CHECK(file, "cannot read \"{}\"", path);
  int64_t id = 0;
  for (std::string line; std::getline(file, line);) {
    const auto characters = decode_utf8(line);
    TORCH_ATTENTION_CHECK(
        encode_utf8(characters) == line,
        "expected UTF-8 in \"{}\", but line {} is none",
        path,
        id + 1);
    files.vocabulary.emplace_back(
        encode_utf8(without_space_at_end(characters)), id++);
  }
}

/// Throws c10::Error for a number that no row of an embedding has.
void check_numbers(
    const std::string& folder,
    const std::vector<std::pair<std::string, int64_t>>& vocabulary) {
  constexpr int64_t kMost = 1 << 24;
  for (const auto& [text, id] : vocabulary) {
    TORCH_ATTENTION_CHECK(
        id >= 0 && id < kMost,
        "the token \"{}\" in \"{}\" has the number {}",
        text,
        folder,
        id);
  }
}

/// Numbers the added tokens as `tokenizers` does: by the vocabulary, or from
/// the number of its pieces on.
void number_tokens(
    const std::string& folder,
    const std::vector<AddedToken>& added,
    TokenizerFiles& files) {
  std::unordered_map<std::string, int64_t> ids;
  std::unordered_map<int64_t, std::string> texts;
  for (const auto& [text, id] : files.vocabulary) {
    ids[text] = id;
    texts[id] = text;
  }
  auto next = static_cast<int64_t>(ids.size());
  for (const auto& token : added) {
    const auto found = ids.find(token.text);
    const auto id = found != ids.end() ? found->second : next++;
    TORCH_ATTENTION_CHECK(
        id == token.id.value_or(id),
        "expected the added token \"{}\" of \"{}\" to have the number {}, "
        "the next one or that of the vocabulary, but got {}",
        token.text,
        folder,
        id,
        *token.id);
    TORCH_ATTENTION_CHECK(
        found != ids.end() || texts.count(id) == 0,
        "the added token \"{}\" of \"{}\" would have the number {}, which "
        "the token \"{}\" has",
        token.text,
        folder,
        id,
        texts[id]);
    TORCH_ATTENTION_CHECK(
        found != ids.end() || token.field.empty() || token.id,
        "expected the token \"{}\", the {} of \"{}\", in the vocabulary",
        token.text,
        token.field,
        folder);
    files.specials.emplace_back(token.text, id);
  }
  for (const auto& text : {files.begin, files.end, files.unknown}) {
    // Python's templates of texts end a token at a space.
    TORCH_ATTENTION_CHECK(
        text.find(' ') == std::string::npos,
        "expected a token without spaces for the begin and end of texts in "
        "\"{}\", but got \"{}\"",
        folder,
        text);
    const auto stated =
        std::any_of(added.begin(), added.end(), [&](const AddedToken& token) {
          return token.text == text && token.id;
        });
    TORCH_ATTENTION_CHECK(
        ids.count(text) > 0 || (stated && text != files.unknown),
        "expected the token {} in the vocabulary of \"{}\"",
        text,
        folder);
  }
}

} // namespace

TokenizerFiles::TokenizerFiles(const std::string& folder) {
  TokenizerConfig config{folder + "/tokenizer_config.json"};
  config.fields = read_json_if_there(config.path);
  const bool is_in_gguf = is_gguf(folder);
  config.tokenizer_class = is_in_gguf
      ? kGenericTokenizer
      : auto_tokenizer_class(folder, config.fields, /*has_byte_level=*/false);
  check_config(config);
  const auto path = is_in_gguf ? folder : folder + "/tokenizer.json";
  const auto tokenizer = is_in_gguf
      ? parse_json(tokenizer_from_gguf(folder), folder)
      : read_json_if_there(path);
  if (is_there(path)) {
    check_tokenizer_types(tokenizer, path);
  }
  cuts_left = auto_tokenizer_cuts_left(folder, config.fields, tokenizer);
  const AddedTokens added(
      folder,
      config.fields,
      tokenizer.get("added_tokens"),
      config.tokenizer_class);
  begin = added.begin;
  end = added.end;
  unknown = added.unknown;
  if (is_there(path)) {
    read_tokenizer_json(tokenizer, path, config, *this);
  } else {
    TORCH_ATTENTION_CHECK(
        is_there(folder + "/vocab.txt") && !config.is_generic(),
        "expected tokenizer.json{} in \"{}\"",
        config.is_generic() ? ", which the tokenizer_class reads,"
                            : " or vocab.txt",
        folder);
    read_vocabulary(folder + "/vocab.txt", *this);
    words = word_options_of(
        config.fields, "do_lower_case", "tokenize_chinese_chars", config.path);
  }
  check_numbers(folder, vocabulary);
  const auto has_piece = [&](const char* text) {
    return std::any_of(
        vocabulary.begin(), vocabulary.end(), [&](const auto& piece) {
          return piece.first == text;
        });
  };
  // A vocabulary of MPNet has BERT's tokens as well.
  TORCH_ATTENTION_CHECK(
      added.names_begin || !config.tokenizer_class.empty() ||
          !has_piece("<s>") || !has_piece("</s>"),
      "expected cls_token and sep_token in \"{}\", since the vocabulary "
      "has [CLS] and <s>",
      config.path);
  number_tokens(folder, added.all, *this);
}

} // namespace torch_attention::models::detail
