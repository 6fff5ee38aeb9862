#pragma once

#include <nn/modules/decode.h>
#include <nn/modules/partition.h>
#include <nn/rotary.h>
#include <torch_attention/nn/options/forward.h>

#include <torch/types.h>

/// The angles of the tokens of one call: the caller's own, or those of their
/// positions. `name` is the module that the messages name.
namespace torch_attention::detail {

/// Checks the caller's own angles of x (B, T, ...), if any, for heads of which
/// `pairs` pairs are rotated.
void check_angles(
    const char* name,
    int64_t pairs,
    const torch::Tensor& x,
    const ForwardOptions& call);
void check_angles(
    const char* name,
    int64_t pairs,
    const torch::Tensor& x,
    const DecodeOptions& call,
    const NewTokens& tokens);

/// Returns the angles of x (B, T, ...) in `forward`, whose checked positions
/// are (T), (B, T) or undefined.
RotaryAngles rotary_angles(
    RotaryTable& table,
    const torch::Tensor& x,
    const ForwardOptions& call,
    const torch::Tensor& positions,
    const Partition& partition);

/// Returns the angles of x (B, T, ...) in `decode`.
RotaryAngles rotary_angles(
    RotaryTable& table,
    const torch::Tensor& x,
    const DecodeOptions& call,
    const NewTokens& tokens);

} // namespace torch_attention::detail
