#pragma once

#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/stack.h>

/// Kernels of the operator `decode`.
namespace torch_attention::operators {

/// The arguments before `kArguments`.
constexpr const char* kDecodeTensors =
    "Tensor query, Tensor key, Tensor value, Tensor(a!) key_cache, "
    "Tensor(b!) value_cache, Tensor lengths";

void decode(const c10::OperatorHandle& op, torch::jit::Stack* stack);
void decode_meta(const c10::OperatorHandle& op, torch::jit::Stack* stack);

/// Casts query, key and value to the dtype of the caches.
void autocast_decode(const c10::OperatorHandle& op, torch::jit::Stack* stack);

} // namespace torch_attention::operators
