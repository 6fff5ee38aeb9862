#pragma once

#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/stack.h>

/// Kernels of the operators of attention.
namespace torch_attention::operators {

using Operator = c10::OperatorHandle;
using torch::jit::Stack;

void attention(const Operator& op, Stack* stack);
void attention_meta(const Operator& op, Stack* stack);
void attention_autograd(const Operator& op, Stack* stack);

/// Under torch.vmap, whose `randomness` LibTorch's dropout follows.
void attention_vmap(const Operator& op, Stack* stack);

void attention_with_weights(const Operator& op, Stack* stack);
void attention_with_weights_meta(const Operator& op, Stack* stack);
void attention_with_weights_autograd(const Operator& op, Stack* stack);
void attention_with_weights_vmap(const Operator& op, Stack* stack);
void attention_with_weights_backward(const Operator& op, Stack* stack);

void attention_forward(const Operator& op, Stack* stack);
void attention_forward_meta(const Operator& op, Stack* stack);
void attention_backward(const Operator& op, Stack* stack);

/// Calls `attention` for the arguments of LibTorch's operator.
void sdpa(const Operator& op, Stack* stack);

/// Shapes of the gradients, for both backward operators.
void gradients_meta(const Operator& op, Stack* stack);

/// Casts query, key and value as LibTorch's own attention does.
void autocast_attention(const Operator& op, Stack* stack);

} // namespace torch_attention::operators
