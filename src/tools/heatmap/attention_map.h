#pragma once

#include <torch/types.h>

#include <cstdint>
#include <string>
#include <vector>

namespace torch_attention::tools {

/// The attention weights of one layer.
struct LayerWeights {
  int64_t layer = 0;
  /// (H, T, S), float32 on the CPU: of query t to key s.
  torch::Tensor weights;
  /// True if keys after the query are hidden, which needs T = S.
  bool causal = false;
};

/// The content of a picture or page.
struct AttentionMap {
  /// The model's file or folder.
  std::string title;
  /// T and S texts, as `printable` gives them; in self-attention the same ones.
  std::vector<std::string> queries;
  std::vector<std::string> keys;
  std::vector<LayerWeights> layers;
  /// The heads that are shown of each layer, rising.
  std::vector<int64_t> heads;
};

/// The most weights of a page or picture. A page stores 2 letters for each.
constexpr int64_t kMostWeights = 20'000'000;

/// Throws c10::Error if a layer has other sizes than the labels and heads, or
/// weights that are not finite numbers from 0 to 1, or if there are more than
/// `kMostWeights`.
void check_map(const AttentionMap& map);

} // namespace torch_attention::tools
