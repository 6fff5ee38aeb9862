#include <tools/heatmap/attention_map.h>

#include <check.h>

#include <c10/util/Exception.h>

namespace torch_attention::tools {

namespace {

/// Rounding lets the softmax exceed 1 by less.
constexpr float kLargestWeight = 1.0001F;

void check_layer(const LayerWeights& layer, int64_t T, int64_t S) {
  const auto& weights = layer.weights;
  const bool fits = weights.dim() == 3 && weights.size(1) == T &&
      weights.size(2) == S && weights.scalar_type() == torch::kFloat;
  TORCH_ATTENTION_CHECK(
      fits,
      "expected weights of shape (heads, {}, {}) of float32 in layer {}, but "
      "got ({}) of {}",
      T,
      S,
      layer.layer,
      fmt::join(weights.sizes(), ", "),
      c10::toString(weights.scalar_type()));
  TORCH_ATTENTION_CHECK(
      !layer.causal || T == S,
      "expected as many keys as queries in layer {}, which is causal, but got "
      "{} and {}",
      layer.layer,
      S,
      T);
  // NaN fails every comparison.
  const bool is_share =
      weights.ge(0).logical_and_(weights.le(kLargestWeight)).all().item<bool>();
  TORCH_ATTENTION_CHECK(
      is_share,
      "expected weights from 0 to 1 in layer {}, but got some that are not",
      layer.layer);
}

} // namespace

void check_map(const AttentionMap& map) {
  const auto T = static_cast<int64_t>(map.queries.size());
  const auto S = static_cast<int64_t>(map.keys.size());
  TORCH_CHECK(
      T > 0 && S > 0 && !map.layers.empty() && !map.heads.empty(),
      "expected at least one token, layer and head");
  const auto count =
      static_cast<int64_t>(map.layers.size() * map.heads.size()) * T * S;
  TORCH_ATTENTION_CHECK(
      count <= kMostWeights,
      "expected at most {} weights, but got {}: choose fewer layers or heads "
      "by --layer and --head",
      kMostWeights,
      count);
  for (const auto& layer : map.layers) {
    check_layer(layer, T, S);
    TORCH_ATTENTION_CHECK(
        map.heads.back() < layer.weights.size(0),
        "expected head {} in layer {}, but it has {} heads",
        map.heads.back(),
        layer.layer,
        layer.weights.size(0));
  }
}

} // namespace torch_attention::tools
