#pragma once

#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/stack.h>
#include <torch/csrc/autograd/variable.h>

namespace torch_attention::operators {

/// Two operators of which one computes the gradients of the other, so that
/// torch.compile and torch.export find both in what they trace:
///
/// forward(arguments...) -> outputs..., the first `num_gradients` of which have
/// gradients
/// backward(gradients..., outputs..., bool[] wanted, arguments...) -> Tensor[],
/// the gradients of those arguments that are wanted of `differentiable`
struct Pair {
  const char* forward;
  const char* backward;
  size_t num_arguments;
  size_t num_gradients;
  c10::ArrayRef<size_t> differentiable;
};

/// Returns whether autograd records a call with these arguments last on the
/// stack.
bool is_recorded(const Pair& pair, const torch::jit::Stack& stack);

/// Calls the first operator with the arguments last on the stack, and records
/// the second in autograd's graph. Returns all outputs. `pair` must last.
torch::autograd::variable_list call_recorded(
    const Pair& pair,
    const torch::jit::Stack& stack);

/// Returns an operator of ours; its name is torch_attention::`name`.
c10::OperatorHandle find_operator(const char* name);

} // namespace torch_attention::operators
