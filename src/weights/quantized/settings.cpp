#include <weights/quantized/settings.h>

#include <weights/quantized/refused.h>

#include <algorithm>
#include <array>
#include <string_view>

namespace torch_attention::weights::quantized {

namespace {

/// Returns the object with the settings themselves.
const Json& settings_in(const Json& json) {
  for (const auto* field : {"quantization_config", "compression_config"}) {
    const auto& inner = json.get(field);
    if (!inner.fields().empty()) {
      return inner;
    }
  }
  return json;
}

/// Returns whether it is the configuration of a model, which has no settings.
bool is_of_model(const Json& json) {
  return json.contains("model_type") || json.contains("architectures");
}

std::string method_of(const Json& settings) {
  if (settings.fields().empty()) {
    return "";
  }
  for (const auto* field : {"quant_method", "method"}) {
    if (const auto method = settings.get(field).as_text()) {
      return method->empty() ? "quantization" : lower(*method);
    }
  }
  if (settings.contains("config_groups")) {
    return "compressed-tensors";
  }
  if (settings.contains("w_bit") && settings.contains("q_group_size")) {
    return "awq";
  }
  if (settings.contains("bits") && settings.contains("desc_act")) {
    return "gptq";
  }
  const bool is_bitsandbytes = settings.get("load_in_4bit").as_flag() == true ||
      settings.get("load_in_8bit").as_flag() == true;
  return is_bitsandbytes ? "bitsandbytes" : "quantization";
}

} // namespace

std::optional<std::pair<int64_t, int64_t>> two_positive(const Json& list) {
  const auto& sizes = list.elements();
  const bool are_two = sizes.size() == 2 && sizes[0].as_integer() > 0 &&
      sizes[1].as_integer() > 0;
  return are_two
      ? std::optional(std::pair{*sizes[0].as_integer(), *sizes[1].as_integer()})
      : std::nullopt;
}

std::string lower(std::string text) {
  std::transform(text.begin(), text.end(), text.begin(), [](char letter) {
    return 'A' <= letter && letter <= 'Z'
        ? static_cast<char>(letter - 'A' + 'a')
        : letter;
  });
  return text;
}

Settings::Settings(const Json* quantization) {
  if (quantization == nullptr) {
    return;
  }
  const auto& settings = settings_in(*quantization);
  if (settings.is_object() && !is_of_model(settings)) {
    fields_ = settings;
  }
  method_ = method_of(fields_);
}

std::optional<int64_t> Settings::integer(
    std::initializer_list<const char*> fields) const {
  for (const auto* field : fields) {
    const auto& value = get(field);
    if (!value.is_null()) {
      refuse_unless(
          value.as_integer().has_value(),
          "is quantized, but \"{}\" of its configuration is {}, expected an "
          "integer",
          field,
          value.shown(100));
      return value.as_integer();
    }
  }
  return std::nullopt;
}

std::optional<bool> Settings::flag(const char* field) const {
  const auto& value = get(field);
  refuse_unless(
      value.is_null() || value.as_flag().has_value(),
      "is quantized, but \"{}\" of its configuration is {}, expected true or "
      "false",
      field,
      value.shown(100));
  return value.as_flag();
}

std::optional<std::string> Settings::text(
    std::initializer_list<const char*> fields) const {
  for (const auto* field : fields) {
    const auto& value = get(field);
    if (!value.is_null()) {
      const auto text = value.as_text();
      refuse_unless(
          text.has_value(),
          "is quantized, but \"{}\" of its configuration is {}, expected a "
          "text",
          field,
          value.shown(100));
      return lower(*text);
    }
  }
  return std::nullopt;
}

void check_method(
    const Settings& settings,
    const char* form,
    std::initializer_list<const char*> methods) {
  static constexpr std::array<std::string_view, 8> kRead = {
      "awq",
      "bitsandbytes",
      "compressed-tensors",
      "fbgemm_fp8",
      "fp8",
      "gptq",
      "modelopt",
      "torchao"};
  const auto& method = settings.method();
  refuse_unless(
      !settings.exist() ||
          std::find(kRead.begin(), kRead.end(), method) != kRead.end(),
      "is quantized by \"{}\", which is not read",
      method);
  refuse_unless(
      !settings.exist() ||
          std::find(methods.begin(), methods.end(), method) != methods.end(),
      "has tensors of {}, but the configuration says that it is quantized by "
      "\"{}\"",
      form,
      method);
}

} // namespace torch_attention::weights::quantized
