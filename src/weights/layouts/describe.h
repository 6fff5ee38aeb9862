#pragma once

#include <torch_attention/weights/inspect.h>

#include <weights/layouts/find.h>
#include <weights/state_dict.h>

#include <vector>

namespace torch_attention::weights::layouts {

/// Describes the attention modules among the tensors of a file, in its order.
/// `decide` has the last word on a layout that was found.
std::vector<WeightsInfo::Attention> describe_attention(
    const StateDict& file,
    const Decide& decide = {});

} // namespace torch_attention::weights::layouts
