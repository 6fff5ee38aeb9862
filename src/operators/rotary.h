#pragma once

#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/stack.h>

/// Kernels of the operator `rotary`.
namespace torch_attention::operators {

/// The arguments of `rotary` and `_rotary_backward` after the first tensor.
constexpr const char* kRotaryArguments =
    "Tensor positions, *, float theta=10000.0, int? dim=None, "
    "bool interleaved=False, float factor=1.0, str scaling=\"linear\", "
    "int? original_context_length=None, float? fast_turns=None, "
    "float slow_turns=1.0, float? attention_factor=None, bool truncate=True, "
    "float[] short_factors=[], float[] long_factors=[]";

void rotary(const c10::OperatorHandle& op, torch::jit::Stack* stack);
void rotary_autograd(const c10::OperatorHandle& op, torch::jit::Stack* stack);

/// Computes the gradient: rotates by the opposite angles.
void rotary_backward(const c10::OperatorHandle& op, torch::jit::Stack* stack);

/// Returns results without values, for `rotary` and `rotary_backward`.
void rotary_meta(const c10::OperatorHandle& op, torch::jit::Stack* stack);

} // namespace torch_attention::operators
