#pragma once

#include <torch_attention/weights/convert.h>

#include <weights/state_dict.h>

namespace torch_attention::weights::layouts {

/// Does what `convert_layout` does, with errors that do not name it.
ConvertedWeights convert(
    const StateDict& from,
    const WeightLayout& source,
    const WeightLayout& target,
    std::optional<int64_t> num_heads = std::nullopt);

} // namespace torch_attention::weights::layouts
