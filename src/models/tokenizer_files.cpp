// The files of a tokenizer, read as `BertTokenizerFast` of transformers 5
// reads them. Where two files contradict each other, which one counts differs
// between its versions and `tokenizers`: such folders are refused.

#include <models/tokenizer_files.h>

#include <check.h>
#include <models/added_tokens.h>
#include <models/json_fields.h>
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

/// Classes of transformers whose tokens are those of `BertTokenizerFast`.
constexpr std::array<std::string_view, 11> kClasses{
    "BertJapaneseTokenizer",
    "BertTokenizer",
    "ConvBertTokenizer",
    "DPRContextEncoderTokenizer",
    "DPRQuestionEncoderTokenizer",
    "DistilBertTokenizer",
    "ElectraTokenizer",
    "MPNetTokenizer",
    "MobileBertTokenizer",
    "RetriBertTokenizer",
    "SqueezeBertTokenizer"};

/// Classes that do what `tokenizer.json` says, and have no options of BERT.
constexpr std::array<std::string_view, 2> kGenericClasses{
    "PreTrainedTokenizer",
    "TokenizersBackend"};

template <typename Names>
bool has(const Names& names, std::string_view name) {
  return std::find(names.begin(), names.end(), name) != names.end();
}

/// Returns the `tokenizer_class` without "Fast", empty if there is none.
std::string class_of(const Json& config, const std::string& path) {
  auto name = json_field(config, "tokenizer_class", "", path);
  const std::string fast = "Fast";
  if (name.size() > fast.size() &&
      name.compare(name.size() - fast.size(), fast.size(), fast) == 0) {
    name.resize(name.size() - fast.size());
  }
  return name;
}

void check_config(const Json& config, const std::string& path) {
  const auto name = class_of(config, path);
  TORCH_ATTENTION_CHECK(
      name.empty() || has(kClasses, name) || has(kGenericClasses, name),
      "expected the tokenizer_class of a tokenizer of BERT in \"{}\", but "
      "got \"{}\"",
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

/// Reads the options of both kinds of files. Accents are removed where letters
/// become lower case, unless it is said otherwise.
WordOptions word_options_of(
    const Json& config,
    const char* lowercase,
    const char* ideographs,
    const std::string& path) {
  WordOptions options;
  options.lowercase = json_field(config, lowercase, true, path);
  options.strip_accents =
      json_field(config, "strip_accents", options.lowercase, path);
  options.ideographs_apart = json_field(config, ideographs, true, path);
  return options;
}

/// Returns the type of a part of `tokenizer.json`. Older files name that of the
/// model by its fields alone.
std::string type_of(
    const Json& tokenizer,
    const char* part,
    const std::string& path) {
  const auto& found = tokenizer.get(part);
  const bool is_untyped_model = part == std::string("model") &&
      !found.contains("type") && found.contains("max_input_chars_per_word");
  return is_untyped_model ? "WordPiece"
      : found.is_object() ? json_field(found, "type", "none", path)
                          : "none";
}

void check_types(const Json& tokenizer, const std::string& path) {
  const auto model = type_of(tokenizer, "model", path);
  const auto normalizer = type_of(tokenizer, "normalizer", path);
  const auto splitter = type_of(tokenizer, "pre_tokenizer", path);
  TORCH_ATTENTION_CHECK(
      model == "WordPiece" && normalizer == "BertNormalizer" &&
          splitter == "BertPreTokenizer",
      "expected a tokenizer of BERT (BertNormalizer, BertPreTokenizer, "
      "WordPiece) in \"{}\", but got {}, {}, {}",
      path,
      normalizer,
      splitter,
      model);
}

struct ConfigFile {
  std::string path;
  Json fields;
};

/// Throws c10::Error unless the configuration's options are those of
/// `tokenizer.json`, which BertTokenizerFast does not read.
void check_agree(
    const Json& tokenizer,
    const std::string& path,
    const ConfigFile& config,
    TokenizerFiles& files) {
  const auto unknown =
      json_field(tokenizer.get("model"), "unk_token", files.unknown, path);
  if (has(kGenericClasses, class_of(config.fields, config.path))) {
    files.unknown = unknown;
    return;
  }
  const auto agree = [&](const char* field,
                         const auto& value,
                         const char* config_field,
                         const auto& config_value) {
    TORCH_ATTENTION_CHECK(
        value == config_value,
        "expected one tokenizer, but \"{}\" has {} = {}, and \"{}\" has {} "
        "= {}, if only by default",
        path,
        field,
        value,
        config.path,
        config_field,
        config_value);
  };
  const auto words = word_options_of(
      config.fields, "do_lower_case", "tokenize_chinese_chars", config.path);
  agree("lowercase", files.words.lowercase, "do_lower_case", words.lowercase);
  agree(
      "strip_accents",
      files.words.strip_accents,
      "strip_accents",
      words.strip_accents);
  agree(
      "handle_chinese_chars",
      files.words.ideographs_apart,
      "tokenize_chinese_chars",
      words.ideographs_apart);
  agree("unk_token", unknown, "unk_token", files.unknown);
  TORCH_ATTENTION_CHECK(
      files.longest_word == 100,
      "expected max_input_chars_per_word = 100 in \"{}\", which "
      "BertTokenizerFast has, but got {}",
      path,
      files.longest_word);
}

void read_tokenizer(
    const Json& tokenizer,
    const std::string& path,
    const ConfigFile& config,
    TokenizerFiles& files) {
  const auto& model = tokenizer.get("model");
  const auto next =
      json_field(model, "continuing_subword_prefix", kContinuing, path);
  TORCH_ATTENTION_CHECK(
      next == kContinuing,
      "expected {} before pieces in \"{}\", but got {}",
      kContinuing,
      path,
      next);
  const auto& normalizer = tokenizer.get("normalizer");
  TORCH_ATTENTION_CHECK(
      json_field(normalizer, "clean_text", true, path),
      "expected a tokenizer that removes control characters in \"{}\"",
      path);
  files.words =
      word_options_of(normalizer, "lowercase", "handle_chinese_chars", path);
  const auto longest =
      json_field(model, "max_input_chars_per_word", int64_t{100}, path);
  TORCH_ATTENTION_CHECK(
      longest >= 0,
      "expected max_input_chars_per_word >= 0 in \"{}\", but got {}",
      path,
      longest);
  files.longest_word = static_cast<size_t>(longest);
  check_agree(tokenizer, path, config, files);
  const auto& vocabulary = model.get("vocab");
  TORCH_ATTENTION_CHECK(
      vocabulary.is_object(),
      "expected an object as \"vocab\" of \"{}\"",
      path);
  for (const auto& [text, id] : vocabulary.fields()) {
    files.vocabulary.emplace_back(
        text, json_field(vocabulary, text, int64_t{-1}, path));
  }
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
  const auto config_path = folder + "/tokenizer_config.json";
  const ConfigFile config{config_path, read_json_if_there(config_path)};
  check_config(config.fields, config.path);
  const bool is_in_gguf = is_gguf(folder);
  const auto path = is_in_gguf ? folder : folder + "/tokenizer.json";
  const auto tokenizer = is_in_gguf
      ? parse_json(tokenizer_from_gguf(folder), folder)
      : read_json_if_there(path);
  if (is_there(path)) {
    check_types(tokenizer, path);
  }
  const AddedTokens added(folder, config.fields, tokenizer.get("added_tokens"));
  begin = added.begin;
  end = added.end;
  unknown = added.unknown;
  if (is_there(path)) {
    read_tokenizer(tokenizer, path, config, *this);
  } else {
    TORCH_ATTENTION_CHECK(
        is_there(folder + "/vocab.txt"),
        "expected tokenizer.json or vocab.txt in \"{}\"",
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
      added.names_begin || !has_piece("<s>") || !has_piece("</s>"),
      "expected cls_token and sep_token in \"{}\", since the vocabulary "
      "has [CLS] and <s>",
      config_path);
  number_tokens(folder, added.all, *this);
}

} // namespace torch_attention::models::detail
