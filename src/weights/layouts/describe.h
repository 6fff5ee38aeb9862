#pragma once

#include <torch_attention/weights/inspect.h>

#include <weights/layouts/find.h>
#include <weights/state_dict.h>

#include <vector>

namespace torch_attention::weights::layouts {

/// Describes the attention modules among the tensors of a file, in the file's
/// order. `decide` may replace a layout that was recognised.
std::vector<WeightsInfo::Attention> describe_attention(
    const StateDict& file,
    const Decide& decide = {});

} // namespace torch_attention::weights::layouts
