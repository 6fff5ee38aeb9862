#pragma once

#include <torch_attention/nn/functional/attention.h>
#include <torch_attention/nn/options/forward.h>

#include <torch/types.h>

#include <cstdint>
#include <vector>

/// The arguments of one call of a module, made into those of functional
/// attention. `name` is the module that the messages name.
namespace torch_attention::detail {

/// Whether `call` brings nothing along.
bool is_empty(const ForwardOptions& call);

/// Checks what hides and adds, and puts it into `options`. `scores` are the
/// sizes of the module's scores: (B, H, T, S), (B, T, S), or (T, S) without a
/// batch.
void set_call(
    const char* name,
    const ForwardOptions& call,
    const std::vector<int64_t>& scores,
    functional::ScaledDotProductAttentionFuncOptions& options);

/// The positions of `call`, int64 (T) or (B, T), for x (B, T, ...); undefined
/// if there are none.
torch::Tensor positions_of(
    const char* name,
    const ForwardOptions& call,
    const torch::Tensor& x);

/// What is hidden between tokens at `positions`, int64 (T) or (B, T), where
/// each sees those of its own chunk: bool (T, T), or (B, 1, T, T).
torch::Tensor hidden_by_chunk(const torch::Tensor& positions, int64_t chunk);

} // namespace torch_attention::detail
