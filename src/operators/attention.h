#pragma once

#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/stack.h>

/// Boxed kernels of the attention operators.
namespace torch_attention::operators {

using Operator = c10::OperatorHandle;
using torch::jit::Stack;

void attention(const Operator& op, Stack* stack);
void attention_meta(const Operator& op, Stack* stack);
void attention_autograd(const Operator& op, Stack* stack);

/// The kernel under torch.vmap. With dropout it calls LibTorch's operators,
/// which follow vmap's `randomness`.
void attention_vmap(const Operator& op, Stack* stack);

void attention_with_weights(const Operator& op, Stack* stack);
void attention_with_weights_meta(const Operator& op, Stack* stack);
void attention_with_weights_autograd(const Operator& op, Stack* stack);
void attention_with_weights_vmap(const Operator& op, Stack* stack);
void attention_with_weights_backward(const Operator& op, Stack* stack);

void attention_forward(const Operator& op, Stack* stack);
void attention_forward_meta(const Operator& op, Stack* stack);
void attention_backward(const Operator& op, Stack* stack);

/// Calls `attention` with the arguments of `at::scaled_dot_product_attention`.
void sdpa(const Operator& op, Stack* stack);

/// Returns gradients without values, for both backward operators.
void gradients_meta(const Operator& op, Stack* stack);

/// Casts query, key and value as autocast does for LibTorch's attention.
void autocast_attention(const Operator& op, Stack* stack);

} // namespace torch_attention::operators
