// Sentence encoders in the folders of sentence-transformers.

#include <torch_attention/models/sentence_encoder.h>

#include <check.h>
#include <format_text.h>
#include <models/json_fields.h>
#include <models/model_config.h>
#include <torch_attention/models/word_piece.h>
#include <torch_attention/weights/gguf.h>

#include <c10/util/Exception.h>

#include <algorithm>
#include <array>
#include <optional>
#include <utility>

namespace torch_attention::models {

namespace {

struct NamedPooling {
  const char* name;
  /// The flag of older files.
  const char* flag;
  Pooling pooling;
};

/// In the order in which sentence-transformers joins the results of flags.
constexpr std::array<NamedPooling, 6> kPoolings{{
    {"cls", "pooling_mode_cls_token", Pooling::kCls},
    {"max", "pooling_mode_max_tokens", Pooling::kMax},
    {"mean", "pooling_mode_mean_tokens", Pooling::kMean},
    {"mean_sqrt_len_tokens",
     "pooling_mode_mean_sqrt_len_tokens",
     Pooling::kMeanSqrt},
    {"weightedmean",
     "pooling_mode_weightedmean_tokens",
     Pooling::kWeightedMean},
    {"lasttoken", "pooling_mode_lasttoken", Pooling::kLastToken},
}};

Pooling pooling_named(const Json& name, const std::string& path) {
  const auto text = name.as_text();
  const auto* const found = std::find_if(
      kPoolings.begin(), kPoolings.end(), [&](const NamedPooling& pooling) {
        return text == pooling.name;
      });
  TORCH_ATTENTION_CHECK(
      found != kPoolings.end(),
      "expected the pooling cls, max, mean, mean_sqrt_len_tokens, weightedmean "
      "or lasttoken in \"{}\", but got {}",
      path,
      name.shown(60));
  return found->pooling;
}

/// Returns the poolings of a module's configuration: a name, several, or flags.
std::vector<Pooling> poolings_of(const Json& config, const std::string& path) {
  std::vector<Pooling> poolings;
  const auto& mode = config.get("pooling_mode");
  if (!mode.is_null() && !mode.is_list()) {
    return {pooling_named(mode, path)};
  }
  for (const auto& name : mode.elements()) {
    poolings.push_back(pooling_named(name, path));
  }
  if (mode.is_list()) {
    return poolings;
  }
  for (const auto& pooling : kPoolings) {
    if (json_field(config, pooling.flag, false, path)) {
      poolings.push_back(pooling.pooling);
    }
  }
  return poolings.empty() ? std::vector<Pooling>{Pooling::kMean} : poolings;
}

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

/// Returns whether arguments of a model leave its numbers as they are.
bool are_without_effect(const Json& arguments) {
  const auto fits = [](const std::string& name, const Json& value) {
    const bool is_dtype = name == "dtype" || name == "torch_dtype";
    return name == "attn_implementation" || name == "add_pooling_layer" ||
        (is_dtype && value.as_text() == "float32");
  };
  const auto& fields = arguments.fields();
  return (arguments.is_null() || arguments.is_object()) &&
      std::all_of(fields.begin(), fields.end(), [&](const auto& field) {
           return fits(field.first, field.second);
         });
}

/// Throws c10::Error for settings of the module Transformer with which tokens
/// or hidden states are not those of `bert_from_pretrained`.
void check_transformer(const Json& config, const std::string& path) {
  const auto check = [&](bool fits, const char* expected, const char* name) {
    TORCH_ATTENTION_CHECK(
        fits,
        "expected {} as \"{}\" of \"{}\", but got {}",
        expected,
        name,
        path,
        config.get(name).shown(60));
  };
  const auto is_text = [&](const char* name, const char* text) {
    return json_field(config, name, text, path) == text;
  };
  check(
      !json_field(config, "do_lower_case", false, path),
      "false",
      "do_lower_case");
  check(
      is_text("transformer_task", "feature-extraction"),
      "feature-extraction",
      "transformer_task");
  check(
      is_text("module_output_name", "token_embeddings"),
      "token_embeddings",
      "module_output_name");
  for (const auto* name :
       {"processing_kwargs",
        "query_expansion",
        "config_args",
        "config_kwargs",
        "tokenizer_args",
        "processor_kwargs",
        "tokenizer_name_or_path"}) {
    check(
        config.get(name).is_null() || config.get(name) == Json::object(),
        "nothing",
        name);
  }
  for (const auto* name : {"model_args", "model_kwargs"}) {
    check(
        are_without_effect(config.get(name)),
        "nothing but attn_implementation, add_pooling_layer and dtype = "
        "float32",
        name);
  }
  const auto& modalities = config.get("modality_config");
  check(
      modalities.is_null() ||
          (modalities.get("text").get("method").as_text() == "forward" &&
           modalities.get("text").get("method_output_name").as_text() ==
               "last_hidden_state"),
      "last_hidden_state of forward for text",
      "modality_config");
}

/// Throws c10::Error if the module Normalize takes or makes anything but the
/// vector of a text. Older folders have no file for it.
void check_normalize(const std::string& path) {
  const auto config = read_json_if_there(path);
  const std::string vector = "sentence_embedding";
  for (const auto* name : {"module_input_name", "module_output_name"}) {
    TORCH_ATTENTION_CHECK(
        json_field(config, name, vector, path) == vector,
        "expected {} as \"{}\" of \"{}\", but got {}",
        vector,
        name,
        path,
        config.get(name).shown(60));
  }
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
    check_transformer(config, path);
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

/// Returns the name of a module's class without those of its packages.
std::string class_of(const Json& module) {
  const auto type = module.get("type").as_text().value_or("");
  return type.substr(type.rfind('.') + 1);
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
        class_of(part) == expected && (i > 0 || place.empty()),
        "expected the modules Transformer without a path, Pooling and "
        "Normalize in \"{}\", but module {} is {}",
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
      check_normalize(format_text("{}/{}/config.json", folder, place));
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
