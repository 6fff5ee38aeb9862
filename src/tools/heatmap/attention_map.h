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
  /// Whether keys after the query are hidden.
  bool causal = false;
};

/// What a picture or page shows.
struct AttentionMap {
  /// Of the model: its file or folder.
  std::string title;
  /// T texts, as `printable` gives them.
  std::vector<std::string> labels;
  std::vector<LayerWeights> layers;
  /// The heads that are shown of each layer, rising.
  std::vector<int64_t> heads;
};

} // namespace torch_attention::tools
