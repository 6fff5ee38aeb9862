#pragma once

#include <tools/heatmap/attention_map.h>

#include <cstdint>
#include <string>
#include <vector>

namespace torch_attention::tools {

/// Runs a TorchScript model on the tokens `ids`, as its only argument (1, T),
/// and returns the weights of the attention that `swap_attention` finds in it:
/// layers are counted in the order in which they are computed. Attention to
/// other than the T tokens does not count. Returns `layers`; all if there are
/// none.
///
/// The code of the model is run. Throws c10::Error if the file is no
/// TorchScript model, no attention is found in it, or it has no such layer.
std::vector<LayerWeights> weights_of_script(
    const std::string& path,
    const std::vector<int64_t>& ids,
    const std::vector<int64_t>& layers);

} // namespace torch_attention::tools
