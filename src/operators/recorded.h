#pragma once

#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/stack.h>
#include <torch/csrc/autograd/variable.h>

namespace torch_attention::operators {

/// Two operators, one of which computes the gradients of the other, so that
/// torch.compile and torch.export record both:
///
/// forward(arguments...) -> outputs..., of which the first `num_gradients` have
/// gradients
/// backward(gradients..., outputs..., bool[] wanted, arguments...) -> Tensor[],
/// the gradients of the `differentiable` arguments that are wanted
struct Pair {
  const char* forward;
  const char* backward;
  size_t num_arguments;
  size_t num_gradients;
  c10::ArrayRef<size_t> differentiable;
};

/// Returns whether autograd records a call whose arguments are last on the
/// stack.
bool is_recorded(const Pair& pair, const torch::jit::Stack& stack);

/// Calls the forward operator with the arguments last on the stack, and records
/// the backward operator in autograd's graph. Returns all outputs. `pair` must
/// outlive the graph.
torch::autograd::variable_list call_recorded(
    const Pair& pair,
    const torch::jit::Stack& stack);

/// Returns the operator torch_attention::`name`.
c10::OperatorHandle find_operator(const char* name);

} // namespace torch_attention::operators
