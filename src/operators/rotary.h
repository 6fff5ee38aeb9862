#pragma once

#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/stack.h>

/// Kernels of the operator `rotary`.
namespace torch_attention::operators {

/// The arguments of it and of its backward operator after the first tensor.
constexpr const char* kRotaryArguments =
    "Tensor positions, *, float theta=10000.0, int? dim=None, "
    "bool interleaved=False, float factor=1.0, str scaling=\"linear\", "
    "int? original_context_length=None, float? fast_turns=None, "
    "float slow_turns=1.0, float? attention_factor=None, bool truncate=True, "
    "float[] short_factors=[], float[] long_factors=[]";

void rotary(const c10::OperatorHandle& op, torch::jit::Stack* stack);
void rotary_autograd(const c10::OperatorHandle& op, torch::jit::Stack* stack);

/// Rotates the other way: the gradient.
void rotary_backward(const c10::OperatorHandle& op, torch::jit::Stack* stack);

/// Shapes of the results, for `rotary` and `rotary_backward`.
void rotary_meta(const c10::OperatorHandle& op, torch::jit::Stack* stack);

} // namespace torch_attention::operators
