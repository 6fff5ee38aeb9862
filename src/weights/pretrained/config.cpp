#include <weights/pretrained/config.h>

#include <check.h>
#include <config_file.h>
#include <format_text.h>
#include <torch_attention/weights/gguf.h>
#include <weights/folder.h>
#include <weights/pretrained/gguf_config.h>
#include <weights/pretrained/models_file.h>
#include <weights/text.h>

#include <c10/util/Exception.h>

#include <algorithm>
#include <array>
#include <string_view>
#include <utility>

namespace torch_attention::weights::pretrained {

namespace {

/// Substrings of the names of fields that may change attention.
constexpr std::array<std::string_view, 22> kWordsOfAttention{
    "alibi",     "attention", "attn",        "bias",     "bidirectional",
    "causal",    "chunk",     "clip",        "head",     "kv",
    "layernorm", "local",     "multi_query", "position", "qk",
    "relative",  "rope",      "rotary",      "scal",     "sink",
    "softcap",   "window"};

/// Fields with such a substring that do not change attention.
constexpr std::array<std::string_view, 34> kFieldsOfOthers{
    "_attn_implementation",
    "_attn_implementation_autoset",
    "_flash_attn_2_enabled",
    "add_cross_attention",
    "apply_layernorm",
    "attention_implementation",
    "attn_implementation",
    "chunk_size_feed_forward",
    "classifier_bias",
    "clip_grad_norm",
    "cross_attention_hidden_size",
    "down_scale_factor",
    "final_logit_softcapping",
    "head_bias",
    "layer_scale_init_value",
    "layernorm_epsilon",
    "layerscale_value",
    "lm_head_bias",
    "lm_head_multiplier",
    "logit_scale",
    "logits_scaling",
    "mlp_bias",
    "max_2d_position_embeddings",
    "num_local_experts",
    "output_attentions",
    "pool_scales",
    "pruned_heads",
    "routed_scaling_factor",
    "router_scaling_factor",
    "scale_embedding",
    "use_auxiliary_head",
    "use_flash_attention_2",
    "use_flash_attn",
    "vision_use_head"};

/// The prefix of fields of the pooling layers.
constexpr std::string_view kPooler = "pooler_";

/// The largest number of bytes of a value in a message.
constexpr size_t kMostShown = 60;

[[noreturn]] void refuse(
    const std::string& path,
    const std::string& field,
    const char* expected,
    const Json& value) {
  TORCH_ATTENTION_CHECK(
      false,
      "expected {} as \"{}\" of \"{}\", but got {}",
      expected,
      field,
      path,
      value.shown(kMostShown));
}

/// Converts the value of a field by `as`; none without a value. Throws
/// c10::Error for a value of another type.
template <typename T>
std::optional<T> value_of(
    const std::string& path,
    const std::string& field,
    const char* expected,
    std::optional<T> (Json::*as)() const,
    const Json* value) {
  if (value == nullptr) {
    return std::nullopt;
  }
  auto result = (value->*as)();
  if (!result) {
    refuse(path, field, expected, *value);
  }
  return result;
}

bool list_has(const Json& list, const Json& element) {
  const auto& elements = list.elements();
  return std::find(elements.begin(), elements.end(), element) != elements.end();
}

/// Returns whether the value of an unknown field turns its feature off: null,
/// an empty object or list, "default", "absolute" positions, or false for a
/// switch.
bool turns_off(std::string_view name, const Json& value) {
  const bool is_switch = starts_with(name, "use_") ||
      starts_with(name, "add_") || ends_with(name, "_bias") ||
      ends_with(name, "_layernorm") || name == "alibi";
  const bool is_absolute =
      name == "position_embedding_type" && value.as_text() == "absolute";
  return value.is_null() || is_absolute ||
      (is_switch && value.as_flag() == false) || value.as_text() == "default" ||
      value == Json::object() || (value.is_list() && value.elements().empty());
}

} // namespace

ModelConfig::ModelConfig(const std::string& path)
    : path_(file_in(path, "config.json")),
      is_gguf_(torch_attention::is_gguf(path_)),
      fields_(is_gguf_ ? read_gguf_config(path_) : read_config_file(path_)) {}

ModelConfig::ModelConfig(std::string path, Json fields)
    : path_(std::move(path)), fields_(std::move(fields)) {}

ModelConfig ModelConfig::nested(const std::string& field) {
  auto fields = object(field);
  // Only the outer configuration names the class.
  if (const auto* classes = fields_.find("architectures")) {
    fields.set("architectures", *classes);
  }
  return {format_text("{}: {}", path_, field), std::move(fields)};
}

void ModelConfig::set_defaults_of(const std::string& model_type) {
  defaults_ = default_fields(model_type);
  names_.clear();
  for (const auto& [name, own] : defaults_.get("names").fields()) {
    names_[name] = own.as_text().value();
  }
  constexpr auto* kRotary = "rope_parameters";
  const auto* rotary = defaults_.find(kRotary);
  // The class uses its own parameters if the older field has none either. Plain
  // ones with a `rope_theta` follow from that field.
  const bool is_plain = rotary != nullptr && defaults_.contains("rope_theta") &&
      rotary->get("rope_type").as_text() == "default";
  // An empty object is not null: the class then has no parameters.
  if (rotary != nullptr && !is_plain && fields_.get(kRotary).is_null() &&
      fields_.get("rope_scaling").fields().empty()) {
    fields_.set(kRotary, *rotary);
  }
  defaults_.erase(kRotary);
}

void ModelConfig::add_missing(const Json& fields) {
  for (const auto& [name, value] : fields.fields()) {
    if (!fields_.contains(name)) {
      fields_.set(name, value);
    }
  }
}

const std::string& ModelConfig::name_of(const std::string& field) const {
  const auto name = names_.find(field);
  return name == names_.end() ? field : name->second;
}

const Json* ModelConfig::find_in_file(const std::string& field) {
  const auto& name = name_of(field);
  seen_.insert(field);
  seen_.insert(name);
  const auto* found = fields_.find(name);
  for (const auto& [other, own] : names_) {
    const auto* value = own == name ? fields_.find(other) : nullptr;
    if (value == nullptr) {
      continue;
    }
    seen_.insert(other);
    TORCH_ATTENTION_CHECK(
        found == nullptr || *found == *value,
        "expected one of \"{}\" and \"{}\", which mean the same, in "
        "\"{}\", but got both, and they differ",
        name,
        other,
        path_);
    found = value;
  }
  return found;
}

const Json* ModelConfig::find(const std::string& field) {
  if (const auto* found = find_in_file(field)) {
    return found->is_null() ? nullptr : found;
  }
  for (const auto* each : {&name_of(field), &field}) {
    if (const auto* found = defaults_.find(*each)) {
      return found;
    }
  }
  return nullptr;
}

const Json* ModelConfig::find_at(const std::string& field, int64_t index) {
  const auto* list = find(field);
  // As in Llama 4, an empty list means none.
  if (list == nullptr || (list->is_list() && list->elements().empty())) {
    return nullptr;
  }
  const auto& elements = list->elements();
  if (!list->is_list() || index >= static_cast<int64_t>(elements.size())) {
    refuse(path_, name_of(field), "a value for each layer", *list);
  }
  return &elements[static_cast<size_t>(index)];
}

bool ModelConfig::has(const std::string& field) {
  return find(field) != nullptr;
}

std::optional<int64_t> ModelConfig::integer(const std::string& field) {
  const auto* value = find(field);
  const auto result =
      value_of(path_, name_of(field), "an integer", &Json::as_integer, value);
  constexpr int64_t kMost = int64_t{1} << 40;
  if (result && (*result > kMost || *result < -kMost)) {
    refuse(path_, field, "an integer", *value);
  }
  return result;
}

std::optional<double> ModelConfig::number(const std::string& field) {
  return value_of(path_, field, "a number", &Json::as_number, find(field));
}

std::optional<bool> ModelConfig::flag(const std::string& field) {
  // null is false in Python.
  if (const auto* found = find_in_file(field);
      found != nullptr && found->is_null()) {
    return false;
  }
  return value_of(path_, field, "true or false", &Json::as_flag, find(field));
}

std::optional<std::string> ModelConfig::text(const std::string& field) {
  return value_of(path_, field, "a text", &Json::as_text, find(field));
}

int64_t ModelConfig::required_integer(const std::string& field) {
  const auto value = integer(field);
  TORCH_ATTENTION_CHECK(
      value.has_value(),
      "expected \"{}\" in \"{}\", which has none",
      name_of(field),
      path_);
  return *value;
}

std::optional<std::string> ModelConfig::text_at(
    const std::string& field,
    int64_t index) {
  return value_of(
      path_, field, "a list of texts", &Json::as_text, find_at(field, index));
}

std::optional<int64_t> ModelConfig::integer_at(
    const std::string& field,
    int64_t index) {
  return value_of(
      path_,
      field,
      "a list of integers",
      &Json::as_integer,
      find_at(field, index));
}

std::optional<double> ModelConfig::number_at(
    const std::string& field,
    int64_t index) {
  return value_of(
      path_,
      field,
      "a list of numbers",
      &Json::as_number,
      find_at(field, index));
}

std::vector<int64_t> ModelConfig::integers_at(
    const std::string& field,
    int64_t index) {
  std::vector<int64_t> result;
  const auto* found = find_at(field, index);
  if (found == nullptr) {
    return result;
  }
  if (!found->is_list()) {
    refuse(path_, field, "a list of lists of integers", *found);
  }
  for (const auto& element : found->elements()) {
    result.push_back(*value_of(
        path_,
        field,
        "a list of lists of integers",
        &Json::as_integer,
        &element));
  }
  return result;
}

Json ModelConfig::object(const std::string& field) {
  return value_of(path_, field, "an object", &Json::as_object, find(field))
      .value_or(Json::object());
}

void ModelConfig::ignore(const std::string& field) {
  seen_.insert(field);
}

void ModelConfig::ignore(std::initializer_list<const char*> fields) {
  seen_.insert(fields.begin(), fields.end());
}

void ModelConfig::forget(const std::string& field) {
  fields_.erase(field);
}

void ModelConfig::drop(const std::string& object, const std::string& field) {
  auto* found = fields_.find_to_change(object);
  if (found != nullptr && found->is_object()) {
    found->erase(field);
  }
}

bool ModelConfig::has_element(const std::string& field, int64_t value) {
  const auto* list = find(field);
  if (list == nullptr) {
    return false;
  }
  if (!list->is_list()) {
    refuse(path_, field, "a list of integers", *list);
  }
  return list_has(*list, Json(value));
}

void ModelConfig::take_layer(int64_t layer, const std::string& model_type) {
  constexpr auto* kLayers = "per_layer_config";
  const auto of_layers = object(kLayers);
  // Other classes take some of its fields, and ignore the others.
  const bool is_read = model_entries().at(model_type).reads_layers;
  for (const auto& [number, fields] : of_layers.fields()) {
    const bool is_number = !number.empty() &&
        number.find_first_not_of("0123456789") == std::string::npos &&
        (number.size() == 1 || number.front() != '0');
    TORCH_ATTENTION_CHECK(
        (is_read && is_number) || fields.fields().empty(),
        "expected {} of \"{}\" {}",
        kLayers,
        path_,
        is_read ? format_text("with numbers of layers, but got \"{}\"", number)
                : "to have no fields, which models of this type do not read");
  }
  constexpr auto* kGlobal = "allow_global_per_layer_attribute_access";
  TORCH_ATTENTION_CHECK(
      !flag(kGlobal).value_or(false) || of_layers.fields().empty(),
      "expected {} = false beside {} in \"{}\"",
      kGlobal,
      kLayers,
      path_);
  const auto* found = of_layers.find(std::to_string(layer));
  if (found == nullptr) {
    return;
  }
  if (!found->is_object()) {
    refuse(path_, kLayers, "an object for each layer", *found);
  }
  fields_.update(*found);
}

std::optional<int64_t> ModelConfig::length(const std::string& field) {
  const auto* found = find(field);
  return found != nullptr && found->is_list()
      ? std::optional(static_cast<int64_t>(found->elements().size()))
      : std::nullopt;
}

bool ModelConfig::lists(const std::string& field, const std::string& text)
    const {
  return list_has(fields_.get(field), Json(text));
}

void ModelConfig::check_layer(int64_t layer, int64_t count) const {
  TORCH_ATTENTION_CHECK(
      layer >= 0 && layer < count,
      "expected a layer in [0, {}), of which \"{}\" speaks, but got {}",
      count,
      path_,
      layer);
}

void ModelConfig::check_no_more(const std::string& model_type) const {
  for (const auto& [field, value] : fields_.fields()) {
    const std::string_view name = field;
    // Modules are loaded in evaluation mode, without dropout.
    const bool drops = name.find("dropout") != std::string_view::npos ||
        ends_with(name, "_pdrop");
    const bool known = drops || seen_.count(field) > 0 ||
        starts_with(name, kPooler) ||
        std::find(kFieldsOfOthers.begin(), kFieldsOfOthers.end(), name) !=
            kFieldsOfOthers.end();
    const bool of_attention = std::any_of(
        kWordsOfAttention.begin(),
        kWordsOfAttention.end(),
        [&](std::string_view word) {
          return name.find(word) != std::string_view::npos;
        });
    TORCH_ATTENTION_CHECK(
        known || !of_attention || turns_off(name, value),
        "\"{}\" of \"{}\" is {}; nothing is known of this field for "
        "model_type \"{}\", and it may change attention",
        field,
        path_,
        value.shown(kMostShown),
        model_type);
  }
}

} // namespace torch_attention::weights::pretrained
