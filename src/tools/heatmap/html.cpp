#include <tools/heatmap/page.h>
#include <tools/heatmap/render.h>

#include <check.h>
#include <format_text.h>

#include <nlohmann/json.hpp>

#include <algorithm>
#include <cmath>
#include <string_view>

namespace torch_attention::tools {

namespace {

constexpr int64_t kMostWeights = 20'000'000;

/// The place of the data in page.html.
constexpr std::string_view kPlaceOfData = "{\"data\": \"of the map\"}";

/// Two letters for each weight that can be seen, six bits each.
std::string letters_of(const LayerWeights& layer, int64_t head) {
  constexpr std::string_view kLetters =
      "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
  constexpr double kLargest = 4095;
  const auto weights = layer.weights[head].contiguous();
  const auto T = weights.size(0);
  const auto* values = weights.const_data_ptr<float>();
  std::string letters;
  for (int64_t row = 0; row < T; ++row) {
    const auto end = layer.causal ? row + 1 : T;
    for (int64_t column = 0; column < end; ++column) {
      const double weight = values[row * T + column];
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
  const auto T = static_cast<int64_t>(map.labels.size());
  const auto count =
      static_cast<int64_t>(map.layers.size() * map.heads.size()) * T * T;
  TORCH_ATTENTION_CHECK(
      count <= kMostWeights,
      "expected at most {} weights in a page, but got {}: choose fewer "
      "layers or heads by --layer and --head",
      kMostWeights,
      count);
  nlohmann::ordered_json data = {
      {"title", map.title},
      {"labels", map.labels},
      {"heads", map.heads},
      {"layers", nlohmann::ordered_json::array()}};
  for (const auto& layer : map.layers) {
    auto weights = nlohmann::ordered_json::array();
    for (const auto head : map.heads) {
      weights.push_back(letters_of(layer, head));
    }
    data["layers"].push_back(
        {{"layer", layer.layer},
         {"causal", layer.causal},
         {"weights", std::move(weights)}});
  }
  std::string page = kPage;
  const auto place = page.find(kPlaceOfData);
  TORCH_INTERNAL_ASSERT(place != std::string::npos);
  return page.replace(place, kPlaceOfData.size(), json_for_script(data));
}

} // namespace torch_attention::tools
