#pragma once

#include <torch_attention/weights/convert.h>

#include <weights/files/stored_values.h>
#include <weights/layouts/find.h>
#include <weights/state_dict.h>

namespace torch_attention::weights::layouts {

/// Converts like `convert_layout`, which adds its name to the errors. `decide`
/// may replace a layout that was recognised. Tensors in `stored` are computed
/// only where they are compared or concatenated.
ConvertedWeights convert(
    const StateDict& from,
    const WeightLayout& source,
    const WeightLayout& target,
    std::optional<int64_t> num_heads = std::nullopt,
    const Decide& decide = {},
    const files::StoredTensors& stored = {});

} // namespace torch_attention::weights::layouts
