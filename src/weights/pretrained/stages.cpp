#include <weights/pretrained/stages.h>

#include <check.h>

#include <numeric>
#include <vector>

namespace torch_attention::weights::pretrained {

namespace {

/// Returns the number of layers of each stage.
std::vector<int64_t> layers_of_stages(
    ModelConfig& config,
    const StageNames& names) {
  if (!names.fixed.empty()) {
    return names.fixed;
  }
  const auto count = config.length(names.field);
  TORCH_ATTENTION_CHECK(
      count.has_value(),
      "expected a list of integers as \"{}\" of \"{}\"",
      names.field,
      config.path());
  if (!names.count.empty()) {
    const auto stages = config.required_integer(names.count);
    TORCH_ATTENTION_CHECK(
        stages == *count,
        "expected {} for each of {} = {} stages in \"{}\", but got {}",
        names.field,
        names.count,
        stages,
        config.path(),
        *count);
  }
  std::vector<int64_t> layers;
  for (int64_t stage = 0; stage < *count; ++stage) {
    layers.push_back(*config.integer_at(names.field, stage));
    constexpr int64_t kMost = 1 << 20;
    TORCH_ATTENTION_CHECK(
        layers.back() >= 0 && layers.back() <= kMost,
        "expected numbers of layers as \"{}\" of \"{}\", but got {}",
        names.field,
        config.path(),
        layers.back());
  }
  return layers;
}

} // namespace

int64_t count_stage_layers(ModelConfig& config, const StageNames& names) {
  const auto layers = layers_of_stages(config, names);
  return std::accumulate(layers.begin(), layers.end(), int64_t{0});
}

StagePlace place_of_layer(
    ModelConfig& config,
    const StageNames& names,
    int64_t layer) {
  StagePlace place{0, layer};
  if (!names.exist()) {
    return place;
  }
  for (const auto count : layers_of_stages(config, names)) {
    if (place.layer < count) {
      break;
    }
    place.layer -= count;
    ++place.stage;
  }
  return place;
}

int64_t size_of_stage(
    ModelConfig& config,
    const StageNames& names,
    const std::string& field,
    int64_t stage) {
  // An empty list is not read as one, and refused.
  const bool is_list = names.exist() && config.length(field).value_or(0) > 0;
  return is_list ? *config.integer_at(field, stage)
                 : config.required_integer(field);
}

} // namespace torch_attention::weights::pretrained
