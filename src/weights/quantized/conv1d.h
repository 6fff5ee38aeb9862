#pragma once

#include <weights/state_dict.h>

#include <set>
#include <string>

namespace torch_attention::weights::quantized {

/// Returns the weights of GPT-2's attention that are quantized only in part:
/// `joined` has the names of those that are, `tensors` the others.
///
/// Its class Conv1D stores a weight as (in, out). When it is quantized it
/// becomes (out, in), as that of the class Linear always is. Layouts go by the
/// shape of `c_attn`, since a square weight does not tell, so that all weights
/// of an attention have to be stored in one way.
std::set<std::string> quantized_in_part(
    const StateDict& tensors,
    const std::set<std::string>& joined);

} // namespace torch_attention::weights::quantized
