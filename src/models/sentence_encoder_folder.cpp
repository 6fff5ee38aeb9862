// Sentence encoders in the folders of sentence-transformers.

#include <torch_attention/models/sentence_encoder.h>

#include <check.h>
#include <format_text.h>
#include <models/json_fields.h>
#include <models/model_config.h>
#include <models/sentence_modules.h>
#include <torch_attention/models/word_piece.h>
#include <torch_attention/weights/gguf.h>

#include <c10/util/Exception.h>

#include <algorithm>
#include <optional>
#include <utility>

namespace torch_attention::models {

namespace {

/// Returns the text that is put before others by default.
std::string read_prompt(const std::string& folder) {
  const auto path = folder + "/config_sentence_transformers.json";
  const auto config = read_json_if_there(path);
  const auto name = json_field(config, "default_prompt_name", "", path);
  if (name.empty()) {
    return "";
  }
  const auto prompt = config.get("prompts").get(name).as_text();
  TORCH_ATTENTION_CHECK(
      prompt,
      "expected a text \"{}\" in the prompts of \"{}\", by its "
      "default_prompt_name",
      name,
      path);
  return *prompt;
}

/// Returns "max_seq_length" of the module Transformer.
std::optional<int64_t> read_max_seq_length(const std::string& folder) {
  // The first file that is there counts.
  for (const auto* type :
       {"bert",
        "roberta",
        "distilbert",
        "camembert",
        "albert",
        "xlm-roberta",
        "xlnet"}) {
    const auto path = format_text("{}/sentence_{}_config.json", folder, type);
    if (!is_there(path)) {
      continue;
    }
    const auto config = read_json(path);
    check_transformer_module(config, path);
    return config.get("max_seq_length").is_null()
        ? std::nullopt
        : std::make_optional(
              json_field(config, "max_seq_length", int64_t{0}, path));
  }
  return std::nullopt;
}

/// Returns "model_max_length" of the tokenizer.
std::optional<int64_t> read_model_max_length(const std::string& folder) {
  // Larger numbers stand for no limit.
  constexpr double kMost = 1e9;
  const auto length = read_json_if_there(folder + "/tokenizer_config.json")
                          .get("model_max_length")
                          .as_number();
  return length && *length >= 1 && *length < kMost
      ? std::make_optional(static_cast<int64_t>(*length))
      : std::nullopt;
}

SentenceEncoder::Tokenize word_pieces_of(const std::string& folder) {
  return [tokenizer = WordPiece(folder)](
             const std::string& text, int64_t max_length) {
    return tokenizer.encode(text, max_length);
  };
}

/// Reads how a GGUF file makes vectors. Whether they are normalised is not in
/// it.
SentenceEncoderOptions sentence_options_of_gguf(const std::string& path) {
  const auto config = read_model_config(path);
  return SentenceEncoderOptions()
      .max_length(config.get("max_position_embeddings").as_integer())
      .pooling({pooling_named(config.get("pooling_mode"), path)});
}

} // namespace

SentenceEncoderOptions sentence_encoder_options_from_pretrained(
    const std::string& folder) {
  if (is_gguf(folder)) {
    return sentence_options_of_gguf(folder);
  }
  auto options =
      SentenceEncoderOptions().max_length(read_model_max_length(folder));
  const auto path = folder + "/modules.json";
  if (!is_there(path)) {
    return options; // the other files are not read then
  }
  options.prompt(read_prompt(folder));
  if (const auto length = read_max_seq_length(folder)) {
    options.max_length(length);
  }
  const auto modules = read_json_value(path);
  const auto& parts = modules.elements();
  for (size_t i = 0; i < std::max<size_t>(parts.size(), 2); ++i) {
    const char* const expected = i == 0 ? "Transformer"
        : i == 1                        ? "Pooling"
                                        : "Normalize";
    const auto part = i < parts.size() ? parts[i] : Json();
    const auto place = json_field(part, "path", "", path);
    TORCH_ATTENTION_CHECK(
        is_module(part, expected) && (i > 0 || place.empty()),
        "expected the modules Transformer without a path, Pooling and "
        "Normalize of sentence_transformers in \"{}\", but module {} is {}",
        path,
        i,
        part.shown(200));
    if (i == 1) {
      const auto file = format_text("{}/{}/config.json", folder, place);
      const auto config = read_json(file);
      options.pooling(poolings_of(config, file));
      TORCH_ATTENTION_CHECK(
          options.prompt().empty() ||
              json_field(config, "include_prompt", true, file),
          "expected true as \"include_prompt\" of \"{}\", but got false",
          file);
    }
    if (i > 1) {
      check_normalize_module(format_text("{}/{}/config.json", folder, place));
    }
    options.normalize(i > 1);
  }
  return options;
}

SentenceEncoder sentence_encoder_from_pretrained(
    const std::string& folder,
    SentenceEncoder::Tokenize tokenize,
    const PretrainedModelOptions& options) {
  auto sentence_options = sentence_encoder_options_from_pretrained(folder);
  if (!tokenize) {
    tokenize = word_pieces_of(folder);
  }
  return {
      bert_from_pretrained(folder, options),
      std::move(tokenize),
      sentence_options};
}

} // namespace torch_attention::models
