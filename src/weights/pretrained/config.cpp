#include <weights/pretrained/config.h>

#include <format_text.h>
#include <weights/text.h>

#include <c10/util/Exception.h>

#include <sys/stat.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <fstream>
#include <string_view>

namespace torch_attention::weights::pretrained {

namespace {

using nlohmann::json;

/// No configuration is larger, or nested deeper.
constexpr int64_t kMostBytes = 16 * 1024 * 1024;
constexpr int kDeepest = 64;

/// Parts of the names of fields that change attention.
constexpr std::array<std::string_view, 22> kWordsOfAttention{
    "alibi",     "attention", "attn",        "bias",     "bidirectional",
    "causal",    "chunk",     "clip",        "head",     "kv",
    "layernorm", "local",     "multi_query", "position", "qk",
    "relative",  "rope",      "rotary",      "scal",     "sink",
    "softcap",   "window"};

/// Fields that have such a part and mean something else.
constexpr std::array<std::string_view, 18> kFieldsOfOthers{
    "_attn_implementation",
    "_attn_implementation_autoset",
    "add_cross_attention",
    "attention_implementation",
    "chunk_size_feed_forward",
    "classifier_bias",
    "cross_attention_hidden_size",
    "final_logit_softcapping",
    "head_bias",
    "layernorm_epsilon",
    "lm_head_bias",
    "logit_scale",
    "logits_scaling",
    "mlp_bias",
    "num_local_experts",
    "output_attentions",
    "pruned_heads",
    "scale_embedding"};

/// Of the layers after the model, not of its attention.
constexpr std::string_view kPooler = "pooler_";

std::string file_of(const std::string& path) {
  struct stat status {};
  const bool is_folder =
      ::stat(path.c_str(), &status) == 0 && S_ISDIR(status.st_mode);
  return is_folder ? path + (path.back() == '/' ? "" : "/") + "config.json"
                   : path;
}

json read(const std::string& path) {
  struct stat status {};
  TORCH_CHECK(
      ::stat(path.c_str(), &status) == 0,
      format_text("cannot read \"{}\": {}", path, std::strerror(errno)));
  TORCH_CHECK(
      S_ISREG(status.st_mode) && status.st_size <= kMostBytes,
      format_text(
          "expected a configuration of at most {} bytes in \"{}\"",
          kMostBytes,
          path));
  std::ifstream file(path, std::ios::binary);
  const auto no_deeper = [&](int depth, json::parse_event_t, json&) {
    TORCH_CHECK(
        depth <= kDeepest,
        format_text("\"{}\" is nested deeper than {}", path, kDeepest));
    return true;
  };
  auto fields = json::parse(file, no_deeper, /*allow_exceptions=*/false);
  TORCH_CHECK(
      fields.is_object(),
      format_text("expected a JSON object in \"{}\"", path));
  return fields;
}

/// A value, for a message.
std::string shown(const json& value) {
  constexpr size_t kMost = 60;
  const auto text = value.dump(-1, ' ', false, json::error_handler_t::replace);
  return text.size() <= kMost ? text : text.substr(0, kMost) + "...";
}

[[noreturn]] void refuse(
    const std::string& path,
    const std::string& field,
    const char* expected,
    const json& value) {
  TORCH_CHECK(
      false,
      format_text(
          "expected {} as \"{}\" of \"{}\", but got {}",
          expected,
          field,
          path,
          shown(value)));
}

/// Whether a field that is not known says that there is nothing of its kind.
/// Where `false` means nothing, the name says what is switched on by `true`.
bool says_nothing(std::string_view name, const json& value) {
  const bool is_switch = starts_with(name, "use_") ||
      starts_with(name, "add_") || ends_with(name, "_bias") ||
      ends_with(name, "_layernorm") || name == "alibi";
  return value.is_null() || (is_switch && value == json(false)) ||
      value == json("default") || (value.is_structured() && value.empty());
}

} // namespace

ModelConfig::ModelConfig(const std::string& path)
    : path_(file_of(path)), fields_(read(path_)) {}

const json* ModelConfig::find(const std::string& field) {
  seen_.insert(field);
  const auto found = fields_.find(field);
  return found == fields_.end() || found->is_null() ? nullptr : &*found;
}

const json* ModelConfig::find_at(const std::string& field, int64_t index) {
  const auto* list = find(field);
  if (list == nullptr) {
    return nullptr;
  }
  if (!list->is_array() || index >= static_cast<int64_t>(list->size())) {
    refuse(path_, field, "a value for each layer", *list);
  }
  return &(*list)[static_cast<size_t>(index)];
}

bool ModelConfig::has(const std::string& field) {
  return find(field) != nullptr;
}

std::optional<int64_t> ModelConfig::integer(const std::string& field) {
  const auto* value = find(field);
  if (value == nullptr) {
    return std::nullopt;
  }
  constexpr int64_t kMost = int64_t{1} << 40;
  if (!value->is_number_integer() || *value > kMost || *value < -kMost) {
    refuse(path_, field, "an integer", *value);
  }
  return value->get<int64_t>();
}

std::optional<double> ModelConfig::number(const std::string& field) {
  const auto* value = find(field);
  if (value == nullptr) {
    return std::nullopt;
  }
  if (!value->is_number()) {
    refuse(path_, field, "a number", *value);
  }
  return value->get<double>();
}

std::optional<bool> ModelConfig::flag(const std::string& field) {
  const auto* value = find(field);
  if (value == nullptr) {
    return std::nullopt;
  }
  if (!value->is_boolean()) {
    refuse(path_, field, "true or false", *value);
  }
  return value->get<bool>();
}

std::optional<std::string> ModelConfig::text(const std::string& field) {
  const auto* value = find(field);
  if (value == nullptr) {
    return std::nullopt;
  }
  if (!value->is_string()) {
    refuse(path_, field, "a text", *value);
  }
  return value->get<std::string>();
}

int64_t ModelConfig::required_integer(const std::string& field) {
  const auto value = integer(field);
  TORCH_CHECK(
      value.has_value(),
      format_text("expected \"{}\" in \"{}\", which has none", field, path_));
  return *value;
}

std::optional<std::string> ModelConfig::text_at(
    const std::string& field,
    int64_t index) {
  const auto* value = find_at(field, index);
  if (value == nullptr) {
    return std::nullopt;
  }
  if (!value->is_string()) {
    refuse(path_, field, "a list of texts", *value);
  }
  return value->get<std::string>();
}

std::optional<int64_t> ModelConfig::integer_at(
    const std::string& field,
    int64_t index) {
  const auto* value = find_at(field, index);
  if (value == nullptr) {
    return std::nullopt;
  }
  if (!value->is_number_integer()) {
    refuse(path_, field, "a list of integers", *value);
  }
  return value->get<int64_t>();
}

json ModelConfig::object(const std::string& field) {
  const auto* value = find(field);
  if (value == nullptr) {
    return json::object();
  }
  if (!value->is_object()) {
    refuse(path_, field, "an object", *value);
  }
  return *value;
}

void ModelConfig::ignore(const std::string& field) {
  seen_.insert(field);
}

void ModelConfig::check_no_more(const std::string& model_type) const {
  for (const auto& [field, value] : fields_.items()) {
    const std::string_view name = field;
    const bool known = seen_.count(field) > 0 || starts_with(name, kPooler) ||
        std::find(kFieldsOfOthers.begin(), kFieldsOfOthers.end(), name) !=
            kFieldsOfOthers.end();
    const bool of_attention = std::any_of(
        kWordsOfAttention.begin(),
        kWordsOfAttention.end(),
        [&](std::string_view word) {
          return name.find(word) != std::string_view::npos;
        });
    TORCH_CHECK(
        known || !of_attention || says_nothing(name, value),
        format_text(
            "\"{}\" of \"{}\" is {}; nothing is known of this field for "
            "model_type \"{}\", and it may change attention",
            field,
            path_,
            shown(value),
            model_type));
  }
}

} // namespace torch_attention::weights::pretrained
