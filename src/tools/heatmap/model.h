#pragma once

#include <tools/heatmap/attention_map.h>

#include <cstdint>
#include <string>
#include <vector>

namespace torch_attention::tools {

/// The values of `model_type` that `weights_of_model` runs.
std::vector<std::string> runnable_model_types();

/// Runs the model of a folder on the tokens `ids`, in float32, and returns the
/// attention weights of `layers`, by `forward_with_weights`; of all layers if
/// there are none.
///
/// Throws c10::Error if the model is of another type, has no such layer, or has
/// no place for so many tokens or for one of them.
std::vector<LayerWeights> weights_of_model(
    const std::string& folder,
    const std::vector<int64_t>& ids,
    std::vector<int64_t> layers);

} // namespace torch_attention::tools
