#pragma once

#include <torch_attention/weights/convert.h>

#include <weights/layouts/find.h>
#include <weights/state_dict.h>

namespace torch_attention::weights::layouts {

/// Does what `convert_layout` does, with errors that do not name it. `decide`
/// has the last word on a layout that was found.
ConvertedWeights convert(
    const StateDict& from,
    const WeightLayout& source,
    const WeightLayout& target,
    std::optional<int64_t> num_heads = std::nullopt,
    const Decide& decide = {});

} // namespace torch_attention::weights::layouts
