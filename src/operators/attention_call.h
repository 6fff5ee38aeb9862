#pragma once

#include <operators/arguments.h>

#include <ATen/core/stack.h>
#include <torch/types.h>

#include <initializer_list>
#include <vector>

namespace torch_attention::operators {

/// A call of one of the attention operators.
struct AttentionCall {
  torch::Tensor query;
  torch::Tensor key;
  torch::Tensor value;
  CallOptions options;
};

/// Reads the last `kNumArguments` of a stack, without the block mask: tensors
/// on the device meta, and those that compilers pass, hold no numbers.
AttentionCall read_sizes(const torch::jit::Stack& stack);

/// Reads the block mask of a call that `read_sizes` read.
void read_block_mask(const torch::jit::Stack& stack, AttentionCall& call);

/// Reads a call that is to be computed, with its block mask.
AttentionCall read_call(const torch::jit::Stack& stack);

/// Returns whether one of the last `n` values of a stack is a tensor subclass
/// or a wrapper, so that a compiler or a transformation records operators.
bool is_watched(const torch::jit::Stack& stack, size_t n);

/// Returns whether one of the last `n` values of a stack is in a transformation
/// of derivatives (torch.func, torch.autograd.forward_ad), which only
/// LibTorch's own operators support.
bool is_transformed(const torch::jit::Stack& stack, size_t n);

/// Replaces the last `n` values of a stack by `results`.
void replace_last(
    torch::jit::Stack& stack,
    size_t n,
    std::initializer_list<c10::IValue> results);

/// Returns an empty output (..., H, T, Dv) with the strides that it has on all
/// devices: as a (..., T, H, Dv) tensor, which the projection reads next.
torch::Tensor empty_output(const AttentionCall& call);

/// Returns an empty tensor of `sizes`, with strides as in `empty_output`.
torch::Tensor empty_heads_last(
    std::vector<c10::SymInt> sizes,
    const torch::TensorOptions& options);

/// Returns `output`, copied if its strides differ from `empty_output`.
torch::Tensor as_output(const torch::Tensor& output);

} // namespace torch_attention::operators
