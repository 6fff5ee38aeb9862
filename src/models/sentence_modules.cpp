#include <models/sentence_modules.h>

#include <check.h>
#include <format_text.h>
#include <models/json_fields.h>

#include <algorithm>
#include <array>
#include <cctype>

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

} // namespace

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

bool is_module(const Json& module, const std::string& name) {
  const auto type = module.get("type").as_text().value_or("");
  auto file = name;
  file[0] = static_cast<char>(std::tolower(file[0]));
  // Versions 2 to 5.3 have them in "models".
  for (const auto* package :
       {"models", "base.modules", "sentence_transformer.modules"}) {
    const auto begin = format_text("sentence_transformers.{}.", package);
    for (const auto& rest :
         {name,
          format_text("{}.{}", file, name),
          format_text("{0}.{0}", name)}) {
      if (type == begin + rest) {
        return true;
      }
    }
  }
  return false;
}

void check_transformer_module(const Json& config, const std::string& path) {
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

void check_normalize_module(const std::string& path) {
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

} // namespace torch_attention::models
