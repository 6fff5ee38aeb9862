#pragma once

#include <torch_attention/weights/inspect.h>

#include <weights/state_dict.h>

#include <vector>

namespace torch_attention::weights::layouts {

/// Describes the attention modules among the tensors of a file, in its order.
std::vector<WeightsInfo::Attention> describe_attention(const StateDict& file);

} // namespace torch_attention::weights::layouts
