#pragma once

#include <weights/files/stored_values.h>
#include <weights/quantized/group.h>
#include <weights/quantized/scheme.h>

// Integers of compressed-tensors.

namespace torch_attention::weights::quantized {

/// Throws `Refused` unless a weight has two dimensions.
void check_matrix(const torch::Tensor& weight);

/// Reads int8 integers: `weight`.
files::StoredValues read_integers(const Group& group, const Scheme& scheme);

/// Reads integers of one to eight bits in words of 32 bits: `weight_packed`, in
/// which each row begins with a new word. 2^(bits - 1) is added to them.
files::StoredValues read_packed_integers(
    const Group& group,
    const Scheme& scheme);

} // namespace torch_attention::weights::quantized
