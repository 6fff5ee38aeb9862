#include <models/tokenizer_json.h>

#include <check.h>
#include <models/json_fields.h>

#include <cstddef>
#include <cstdint>

namespace torch_attention::models::detail {

namespace {

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

/// Throws c10::Error unless the configuration's options are those of
/// `tokenizer.json`, which BertTokenizerFast does not read.
void check_agree(
    const Json& tokenizer,
    const std::string& path,
    const TokenizerConfig& config,
    const TokenizerFiles& files) {
  const auto unknown =
      json_field(tokenizer.get("model"), "unk_token", files.unknown, path);
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

/// Returns the token of one place around texts that a post_processor names, or
/// nothing unless it has there one token of the vocabulary alone.
std::string token_around(
    const Json& tokenizer,
    size_t place,
    const char* older_field) {
  const auto& part = tokenizer.get("post_processor");
  const auto& template_parts = part.get("single").elements();
  const auto& pair = part.get(older_field).elements();
  const auto type = part.get("type").as_text();
  std::string token;
  Json id;
  if (type == "TemplateProcessing" && template_parts.size() == 3 &&
      template_parts[1].contains("Sequence")) {
    const auto& special = template_parts[place].get("SpecialToken");
    token = special.get("id").as_text().value_or("");
    const auto& ids = part.get("special_tokens").get(token).get("ids");
    id = ids.elements().size() == 1 ? ids.elements()[0] : Json();
  } else if (type == "BertProcessing" && pair.size() == 2) {
    token = pair[0].as_text().value_or("");
    id = pair[1];
  }
  const auto& expected = tokenizer.get("model").get("vocab").get(token);
  return !id.is_null() && id == expected ? token : "";
}

/// Reads the tokens around texts, which the classes of BERT put there
/// themselves.
void read_tokens_around(
    const Json& tokenizer,
    const std::string& path,
    TokenizerFiles& files) {
  files.begin = token_around(tokenizer, 0, "cls");
  files.end = token_around(tokenizer, 2, "sep");
  TORCH_ATTENTION_CHECK(
      !files.begin.empty() && !files.end.empty(),
      "expected a post_processor with one token of the vocabulary before each "
      "text and one behind it in \"{}\", but got {}",
      path,
      tokenizer.get("post_processor").shown(200));
}

} // namespace

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

void check_tokenizer_types(const Json& tokenizer, const std::string& path) {
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

void read_tokenizer_json(
    const Json& tokenizer,
    const std::string& path,
    const TokenizerConfig& config,
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
  if (config.is_generic()) {
    files.unknown = json_field(model, "unk_token", "[UNK]", path);
    read_tokens_around(tokenizer, path, files);
  } else {
    check_agree(tokenizer, path, config, files);
  }
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

} // namespace torch_attention::models::detail
