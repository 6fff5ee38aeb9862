#include <weights/layout_beside.h>

#include <format_text.h>
#include <weights/pretrained/config.h>
#include <weights/pretrained/families.h>
#include <weights/text.h>

#include <c10/util/Exception.h>

#include <algorithm>
#include <memory>
#include <optional>
#include <string>
#include <vector>

namespace torch_attention::weights {

using namespace layouts;

namespace {

/// The only built-in layout that shares its keys and shapes with another one.
constexpr auto* kFound = "nano_gpt";
/// The `model_type` of models with the same keys and, if each head has its own
/// keys, the same shapes. Their rows are grouped by head.
constexpr auto* kTwin = "gpt_bigcode";

/// Returns the configuration next to the file; none if it cannot be read.
std::optional<pretrained::ModelConfig> config_beside(const std::string& path) {
  if (path.empty()) {
    return std::nullopt;
  }
  try {
    return pretrained::ModelConfig(folder_of(path) + "config.json");
  } catch (const c10::Error&) {
    return std::nullopt;
  }
}

std::optional<std::string> type_beside(pretrained::ModelConfig& config) {
  try {
    return config.text("model_type");
  } catch (const c10::Error&) {
    return std::nullopt;
  }
}

/// Returns those parts of a dotted path that are numbers.
std::vector<int64_t> numbers_in(const std::string& path) {
  constexpr size_t kMostDigits = 9;
  std::vector<int64_t> numbers;
  for (size_t begin = 0; begin <= path.size();) {
    const auto end = std::min(path.find('.', begin), path.size());
    const auto part = path.substr(begin, end - begin);
    if (!part.empty() && part.size() <= kMostDigits &&
        part.find_first_not_of("0123456789") == std::string::npos) {
      numbers.push_back(std::stoll(part));
    }
    begin = end + 1;
  }
  return numbers;
}

/// Returns the layout of the attention at `path` in a model of type `kTwin`.
WeightLayout twin_at(
    const std::string& path,
    const pretrained::ModelConfig& config) {
  auto counted = config;
  const auto count = pretrained::count_layers(counted, PretrainedPart::kAuto);
  // The path has few numbers, but a configuration may claim many layers.
  for (const auto layer : numbers_in(path)) {
    if (layer >= count) {
      continue;
    }
    auto of_layer = config;
    pretrained::Wanted wanted;
    wanted.layer = layer;
    const auto place =
        pretrained::describe_attention(of_layer, wanted).places.front();
    if (ends_with("." + path, "." + place.path)) {
      return place.layout;
    }
  }
  C10_THROW_ERROR(
      Error,
      format_text(
          "\"{}\" is of model_type \"{}\", whose keys and shapes are those of "
          "layout {}, but not the order of its rows; it has no attention at {}. "
          "attention_from_pretrained loads it from its folder",
          config.path(),
          kTwin,
          kFound,
          scope_text(path)));
}

} // namespace

Decide layout_beside(const std::string& path, const std::string& start) {
  struct Beside {
    bool is_read = false;
    std::optional<pretrained::ModelConfig> config;
  };
  return [path, start, beside = std::make_shared<Beside>()](
             const std::string& scope, const WeightLayout& found) -> Decision {
    if (found.name() != kFound) {
      return {found, ""};
    }
    // Read once for all layers.
    if (!beside->is_read) {
      beside->config = config_beside(path);
      beside->is_read = true;
    }
    auto& config = beside->config;
    const auto type = config ? type_beside(*config) : std::nullopt;
    if (!type) {
      return {
          found,
          format_text(
              "the keys and shapes of layout {} are also those of {}, whose rows "
              "are in another order: only the config.json beside a file tells "
              "them apart, or attention_from_pretrained",
              kFound,
              kTwin)};
    }
    if (*type != kTwin) {
      return {found, ""};
    }
    auto attention = start + scope;
    if (!attention.empty() && attention.back() == '.') {
      attention.pop_back();
    }
    return {twin_at(attention, *config), ""};
  };
}

} // namespace torch_attention::weights
