#include <weights/lora_config.h>

#include <check.h>
#include <config_file.h>
#include <format_text.h>
#include <weights/lora_pattern.h>
#include <weights/text.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <optional>
#include <sstream>
#include <string_view>

namespace torch_attention::weights {

namespace {

/// Fields that do not change the sum, or that are looked at.
constexpr std::array<std::string_view, 33> kHarmless{
    "alpha_pattern",
    "auto_mapping",
    "base_model_name_or_path",
    "bias",
    "corda_config",
    "ensure_weight_tying",
    "eva_config",
    "exclude_modules",
    "fan_in_fan_out",
    "inference_mode",
    "init_lora_weights",
    "layers_pattern",
    "layers_to_transform",
    "loftq_config",
    "lora_alpha",
    "lora_dropout",
    "lora_ga_config",
    "megatron_config",
    "megatron_core",
    "modules_to_save",
    "peft_type",
    "peft_version",
    "qalora_group_size",
    "r",
    "rank_pattern",
    "revision",
    "runtime_config",
    "target_modules",
    "task_type",
    "use_dora",
    "use_rslora",
    "lora_bias",
    "use_qalora"};

bool is_off(const Json& value) {
  return value.is_null() || value == Json(false) ||
      value == Json(Json::List()) || value == Json::object();
}

/// Returns whether a name of PEFT's pattern is a name of modules, but for its
/// dots, which stand for any character.
bool is_plain(const std::string& name) {
  return !name.empty() &&
      name.find_first_not_of(
          "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-.") ==
      std::string::npos;
}

/// Returns whether PEFT finds the module by this name in a pattern: its path
/// ends with it.
bool ends_with_pattern(const std::string& module, const std::string& name) {
  if (module.size() < name.size()) {
    return false;
  }
  const auto begin = module.size() - name.size();
  return (begin == 0 || module[begin - 1] == '.') &&
      std::equal(
             name.begin(),
             name.end(),
             module.begin() + static_cast<std::ptrdiff_t>(begin),
             [](char wanted, char found) {
               return wanted == '.' || wanted == found;
             });
}

/// Returns whether a list has a value.
bool contains_value(const Json& list, const Json& value) {
  const auto& elements = list.elements();
  return std::find(elements.begin(), elements.end(), value) != elements.end();
}

/// Returns whether a list of names has the module or the end of its path.
bool lists(const Json& names, const std::string& module) {
  const auto& elements = names.elements();
  return std::any_of(elements.begin(), elements.end(), [&](const Json& each) {
    return ends_with_names(module, each.as_text().value_or(""));
  });
}

/// Returns whether PEFT selects the module by names: a list of the ends of
/// paths, or a regular expression for whole ones.
bool selects(const Json& names, const std::string& module) {
  const auto pattern = names.as_text();
  return pattern ? matches_pattern(*pattern, module) : lists(names, module);
}

/// Returns whether names are the word that PEFT replaces by all linear layers.
bool is_all_linear(const Json& names) {
  return in_lower_case(names.as_text().value_or("")) == "all-linear";
}

/// Returns the numbers of layers in the path of a module: those after a name,
/// which has one before it. With `list`, only after this name.
std::vector<int64_t> layers_of(
    const std::string& module,
    const std::optional<std::string>& list) {
  constexpr size_t kMostDigits = 9;
  std::vector<int64_t> layers;
  std::vector<std::string> parts;
  std::istringstream stream(module);
  for (std::string part; std::getline(stream, part, '.');) {
    parts.push_back(part);
  }
  for (size_t i = 2; i + 1 < parts.size(); ++i) {
    const auto& part = parts[i];
    if (!part.empty() && part.size() <= kMostDigits &&
        part.find_first_not_of("0123456789") == std::string::npos &&
        (!list || parts[i - 1] == *list)) {
      layers.push_back(std::stoll(part));
    }
  }
  return layers;
}

} // namespace

LoraConfig::LoraConfig(const std::string& path)
    : path_(path), fields_(read_config_file(path)) {
  check_fields();
  fan_in_fan_out_ = fields_.get("fan_in_fan_out").as_flag().value_or(false);
}

void LoraConfig::check_fields() const {
  const auto type = fields_.get("peft_type").as_text().value_or("");
  TORCH_ATTENTION_CHECK(
      type == "LORA",
      "\"{}\" is an adapter of the kind \"{}\"; only LORA is merged",
      path_,
      type);
  for (const auto* field : {"use_dora", "lora_bias", "use_qalora"}) {
    TORCH_ATTENTION_CHECK(
        is_off(fields_.get(field)),
        "\"{}\" has {}, which is not merged: in Python apply the adapter by "
        "PeftModel.from_pretrained and call merge_and_unload()",
        path_,
        field);
  }
  // Other initial values leave the model's own weights as they are.
  const auto& start = fields_.get("init_lora_weights");
  const auto named = start.as_text().value_or("gaussian");
  TORCH_ATTENTION_CHECK(
      (start.is_null() || start.as_flag() || start.is_text()) &&
          (named == "gaussian" || named == "eva" || named == "orthogonal"),
      "\"{}\" has the init_lora_weights {}, with which PEFT changes the model's "
      "own weights: save the adapter with path_initial_model_for_weight_"
      "conversion, or merge it in Python by merge_and_unload()",
      path_,
      start.shown(80));
  for (const auto& [name, value] : fields_.fields()) {
    const bool is_known =
        std::find(kHarmless.begin(), kHarmless.end(), name) != kHarmless.end();
    TORCH_ATTENTION_CHECK(
        is_known || is_off(value),
        "\"{}\" has the field \"{}\" = {}, which is not known: the adapter may "
        "be more than W + B A",
        path_,
        shortened(name, 80),
        value.shown(80));
  }
}

void LoraConfig::check_target(const std::string& module) const {
  const auto check = [&](bool applies, const char* field) {
    TORCH_ATTENTION_CHECK(
        applies,
        "the adapter has matrices for \"{}\", but PEFT would not apply them, by "
        "{} = {} of \"{}\"",
        module,
        field,
        fields_.get(field).shown(80),
        path_);
  };
  const auto& excluded = fields_.get("exclude_modules");
  check(is_off(excluded) || !selects(excluded, module), "exclude_modules");
  check(!saves_module(module), "modules_to_save");
  const auto& targets = fields_.get("target_modules");
  const bool is_any = targets.is_null() || is_all_linear(targets);
  check(is_any || selects(targets, module), "target_modules");
  // PEFT does not look at the layer of a module that is listed by its path.
  if (!is_off(fields_.get("layers_to_transform")) &&
      !contains_value(targets, Json(module))) {
    TORCH_ATTENTION_CHECK(
        !targets.is_text() || is_any,
        "\"{}\" has layers_to_transform and the text {} as target_modules, which "
        "PEFT refuses",
        path_,
        targets.shown(80));
    check(transforms_layer_of(module), "layers_to_transform");
  }
}

bool LoraConfig::transforms_layer_of(const std::string& module) const {
  const auto layers = numbers_of_layers(module);
  const auto& wanted = fields_.get("layers_to_transform");
  const auto is_wanted = [&](int64_t layer) {
    return wanted.as_integer() == layer || contains_value(wanted, Json(layer));
  };
  // Versions of PEFT take the first or the last number.
  return !layers.empty() && is_wanted(layers.front()) &&
      is_wanted(layers.back());
}

std::vector<int64_t> LoraConfig::numbers_of_layers(
    const std::string& module) const {
  const auto& pattern = fields_.get("layers_pattern");
  if (is_off(pattern) || pattern == Json(std::string())) {
    return layers_of(module, std::nullopt);
  }
  for (const auto& each :
       pattern.is_text() ? Json::List{pattern} : pattern.elements()) {
    const auto name = each.as_text().value_or("");
    TORCH_ATTENTION_CHECK(
        is_plain(name) && name.find('.') == std::string::npos,
        "\"{}\" has layers_pattern = {}; expected the names of lists of layers",
        path_,
        pattern.shown(80));
    auto layers = layers_of(module, name);
    if (!layers.empty()) {
      return layers;
    }
  }
  return {};
}

bool LoraConfig::saves_module(const std::string& module) const {
  const auto& names = fields_.get("modules_to_save").elements();
  return std::any_of(names.begin(), names.end(), [&](const Json& each) {
    const auto name = format_text(".{}.", each.as_text().value_or(""));
    return name != ".." &&
        format_text(".{}.", module).find(name) != std::string::npos;
  });
}

double LoraConfig::value_of(
    const std::string& pattern,
    const std::string& field,
    const std::string& module) const {
  std::optional<double> found;
  for (const auto& [name, value] : fields_.get(pattern).fields()) {
    TORCH_ATTENTION_CHECK(
        is_plain(name) && value.is_number(),
        "\"{}\" has \"{}\": {} in {}; expected the name of a module and a number",
        path_,
        shortened(name, 80),
        value.shown(80),
        pattern);
    if (!ends_with_pattern(module, name)) {
      continue;
    }
    const auto number = value.as_number();
    TORCH_ATTENTION_CHECK(
        !found || *found == *number,
        "\"{}\" has two numbers for \"{}\" in {}",
        path_,
        module,
        pattern);
    found = number;
  }
  if (found) {
    return *found;
  }
  const auto number = fields_.get(field).as_number();
  TORCH_ATTENTION_CHECK(
      number.has_value() && std::isfinite(*number),
      "expected a number as \"{}\" of \"{}\", but got {}",
      field,
      path_,
      fields_.get(field).shown(80));
  return *number;
}

double LoraConfig::scale_of(const std::string& module, int64_t rank) const {
  const auto its_rank = value_of("rank_pattern", "r", module);
  TORCH_ATTENTION_CHECK(
      rank > 0 && its_rank == static_cast<double>(rank),
      "\"{}\" gives \"{}\" the rank {}, but its weights have {}",
      path_,
      module,
      its_rank,
      rank);
  const auto alpha = value_of("alpha_pattern", "lora_alpha", module);
  const bool by_root = fields_.get("use_rslora").as_flag().value_or(false);
  return alpha / (by_root ? std::sqrt(its_rank) : its_rank);
}

} // namespace torch_attention::weights
