#pragma once

#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/stack.h>

/// Kernels of the operator `decode`.
namespace torch_attention::operators {

/// Its arguments.
constexpr const char* kDecodeArguments =
    "Tensor query, Tensor key, Tensor value, Tensor(a!) key_cache, "
    "Tensor(b!) value_cache, Tensor lengths, *, int? window=None, "
    "int? chunk=None, float? scale=None, float? softcap=None, "
    "Tensor? alibi_slopes=None, Tensor? sinks=None";

void decode(const c10::OperatorHandle& op, torch::jit::Stack* stack);
void decode_meta(const c10::OperatorHandle& op, torch::jit::Stack* stack);

/// Casts query, key and value to the dtype of the caches.
void autocast_decode(const c10::OperatorHandle& op, torch::jit::Stack* stack);

} // namespace torch_attention::operators
