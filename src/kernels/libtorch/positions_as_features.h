#pragma once

#include <kernels/attention.h>

/// ALiBi in half precision by the kernels for attention without biases.
namespace torch_attention::kernels {

/// Returns whether ALiBi's slopes can become features of queries and keys: for
/// half precision on a device, if causal, without other scores and without
/// gradients of the slopes.
bool may_have_positions_as_features(const Attention& a);

/// Returns `a` without slopes, whose queries and keys have eight more features
/// instead, and whose values are filled up with zeros. Their products are the
/// slope times the key's position; from ALiBi's distance they differ by a
/// number that is the same for all keys of a query, which the softmax ignores.
///
/// Both are written as sums of numbers that half precision holds: kernels add
/// products in float32, so that distances are not rounded to half precision.
Attention with_positions_as_features(const Attention& a);

} // namespace torch_attention::kernels
