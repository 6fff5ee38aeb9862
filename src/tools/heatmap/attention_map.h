#pragma once

#include <torch/types.h>

#include <cstdint>
#include <string>
#include <vector>

namespace torch_attention::tools {

/// The attention weights of one layer.
struct LayerWeights {
  int64_t layer = 0;
  /// (H, T, T), float32 on the CPU: of query t to key s.
  torch::Tensor weights;
  /// True if keys after the query are hidden.
  bool causal = false;
};

/// The content of a picture or page.
struct AttentionMap {
  /// The model's file or folder.
  std::string title;
  /// T texts, as `printable` gives them.
  std::vector<std::string> labels;
  std::vector<LayerWeights> layers;
  /// The heads that are shown of each layer, rising.
  std::vector<int64_t> heads;
};

} // namespace torch_attention::tools
