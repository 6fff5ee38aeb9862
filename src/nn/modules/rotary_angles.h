#pragma once

#include <nn/modules/decode.h>
#include <nn/modules/partition.h>
#include <nn/rotary.h>
#include <torch_attention/nn/options/forward.h>

#include <torch/types.h>

/// The angles of the tokens of one call: the caller's own, or those of their
/// positions. `name` is the module that the messages name.
namespace torch_attention::detail {

/// Returns the angles of x (B, T, ...) in `forward`, whose checked positions
/// are (T), (B, T) or undefined. Throws c10::Error if the caller's tables do
/// not fit.
RotaryAngles rotary_angles(
    const char* name,
    RotaryTable& table,
    const torch::Tensor& x,
    const ForwardOptions& call,
    const torch::Tensor& positions,
    const Partition& partition);

/// Returns the angles of x (B, T, ...) in `decode`.
RotaryAngles rotary_angles(
    const char* name,
    RotaryTable& table,
    const torch::Tensor& x,
    const DecodeOptions& call,
    const NewTokens& tokens);

} // namespace torch_attention::detail
