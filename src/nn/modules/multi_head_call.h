#pragma once

#include <nn/modules/head_split.h>
#include <torch_attention/nn/functional/attention.h>
#include <torch_attention/nn/modules/multi_head_attention.h>
#include <torch_attention/nn/options/forward.h>

#include <torch/types.h>

/// The checks of what a `MultiHeadAttention` gets, and what it asks of
/// functional attention.
namespace torch_attention::detail {

constexpr const char* kMultiHead = "MultiHeadAttention";

void check_input(const MultiHeadAttentionImpl& module, const torch::Tensor& x);

/// Checks that there are blocks for tokens x (B, T, ...) where the module needs
/// them.
void check_has_blocks(
    const MultiHeadAttentionImpl& module,
    const torch::Tensor& x,
    const torch::Tensor& visible_blocks);

/// Checks x, and that it is no part of longer sequences than it may be.
void check_input_of_call(
    const MultiHeadAttentionImpl& module,
    const torch::Tensor& x,
    const ForwardOptions& call);

/// Refuses what needs the tokens of all processes.
void check_has_all_tokens(
    const char* what,
    const MultiHeadAttentionImpl& module);

/// Returns what the heads ask of functional attention, but for the kernel.
functional::ScaledDotProductAttentionFuncOptions head_options(
    const MultiHeadAttentionImpl& module,
    const HeadSplitPointer& split);

/// Returns the checked positions of `call`, undefined if nothing depends on
/// them.
torch::Tensor positions_of_call(
    const MultiHeadAttentionImpl& module,
    const torch::Tensor& x,
    const ForwardOptions& call);

/// Returns `head_options` with what one call hides and adds.
functional::ScaledDotProductAttentionFuncOptions call_options(
    const MultiHeadAttentionImpl& module,
    const torch::Tensor& x,
    const ForwardOptions& whole_call,
    const torch::Tensor& positions,
    const HeadSplitPointer& split);

} // namespace torch_attention::detail
