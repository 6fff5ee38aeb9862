#pragma once

#include <nn/modules/decode.h>
#include <nn/modules/partition.h>
#include <nn/rotary.h>
#include <torch_attention/nn/options/forward.h>

#include <torch/types.h>

/// The rotary angles of the tokens of one call: passed by the caller, or
/// computed from positions. `name` is the module in messages.
namespace torch_attention::detail {

/// Checks the caller's cosines and sines for x (B, T, ...), if there are any.
/// `pairs` is half the number of rotated elements of a head.
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

/// Returns the angles of x (B, T, ...) in `forward`; `positions` are checked:
/// (T), (B, T) or undefined.
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
