#include <tools/heatmap/page.h>
#include <tools/heatmap/render.h>

#include <format_text.h>

#include <c10/util/Exception.h>

#include <nlohmann/json.hpp>

#include <algorithm>
#include <cmath>
#include <string_view>

namespace torch_attention::tools {

namespace {

/// The place of the data in the page.
constexpr std::string_view kPlaceOfData = "{\"data\": \"of the map\"}";

/// Two letters for each weight that can be seen, six bits each.
std::string letters_of(const LayerWeights& layer, int64_t head) {
  constexpr std::string_view kLetters =
      "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
  constexpr double kLargest = 4095;
  const auto weights = layer.weights[head].contiguous();
  const auto S = weights.size(1);
  const auto* values = weights.const_data_ptr<float>();
  std::string letters;
  for (int64_t row = 0; row < weights.size(0); ++row) {
    const auto end = layer.causal ? row + 1 : S;
    for (int64_t column = 0; column < end; ++column) {
      const double weight = values[row * S + column];
      const auto bits = static_cast<size_t>(
          std::lround(std::clamp(weight, 0.0, 1.0) * kLargest));
      letters += kLetters[bits / 64];
      letters += kLetters[bits % 64];
    }
  }
  return letters;
}

/// JSON in which no `</script>` or `<!--` ends the script that it is in.
std::string json_for_script(const nlohmann::ordered_json& json) {
  // Labels are printable; a path need not be UTF-8.
  const auto text = json.dump(
      -1, ' ', false, nlohmann::ordered_json::error_handler_t::replace);
  std::string result;
  for (const auto letter : text) {
    if (letter == '<' || letter == '>' || letter == '&') {
      result += format_text("\\u{:04x}", static_cast<int>(letter));
    } else {
      result += letter;
    }
  }
  return result;
}

} // namespace

std::string html_of(const AttentionMap& map) {
  check_map(map);
  auto layers = nlohmann::ordered_json::array();
  for (const auto& layer : map.layers) {
    auto weights = nlohmann::ordered_json::array();
    for (const auto head : map.heads) {
      weights.push_back(letters_of(layer, head));
    }
    layers.push_back(
        {{"layer", layer.layer},
         {"causal", layer.causal},
         {"weights", std::move(weights)}});
  }
  nlohmann::ordered_json attention = {
      {"name", "attention"},
      {"queries", map.queries},
      {"keys", map.keys},
      {"heads", map.heads},
      {"layers", std::move(layers)}};
  auto attentions = nlohmann::ordered_json::array();
  attentions.push_back(std::move(attention));
  const nlohmann::ordered_json data = {
      {"title", map.title}, {"attentions", std::move(attentions)}};
  std::string page = kPage;
  const auto place = page.find(kPlaceOfData);
  TORCH_INTERNAL_ASSERT(place != std::string::npos);
  return page.replace(place, kPlaceOfData.size(), json_for_script(data));
}

} // namespace torch_attention::tools
