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

/// Whether x (N, d_in) is packed sequences, which have a batch of size 1 when
/// they are computed.
bool lacks_batch(const torch::Tensor& x, const ForwardOptions& call);

/// B sequences of T queries and S keys; packed ones as in a padded batch.
struct CallSizes {
  int64_t B;
  int64_t T;
  int64_t S;
};

/// The sizes of self-attention of x (B, T, ...) or (T, ...). Checks
/// `cu_seqlens`.
CallSizes sizes_of_call(
    const char* name,
    const torch::Tensor& x,
    const ForwardOptions& call);

/// The sizes of attention of x (B, T, ...) to `context` (B, S, ...).
CallSizes sizes_of_call(
    const char* name,
    const torch::Tensor& x,
    const torch::Tensor& context,
    const ForwardOptions& call);

/// Checks that no sequence is longer than `context_length`.
void check_length(
    const char* name,
    const torch::Tensor& x,
    const ForwardOptions& call,
    int64_t context_length);

/// Checks what hides and adds, and puts it into `options`. `scores` are the
/// sizes of the module's scores: (B, H, T, S), (B, T, S), or (T, S) without a
/// batch.
void set_call(
    const char* name,
    const ForwardOptions& call,
    const std::vector<int64_t>& scores,
    functional::ScaledDotProductAttentionFuncOptions& options);

/// The positions of `call`, int64 (T) or (B, T), for x (B, T, ...); those in
/// its own sequence of each packed token; undefined if there are none.
torch::Tensor positions_of(
    const char* name,
    const ForwardOptions& call,
    const torch::Tensor& x);

/// What is hidden between tokens at `positions`, int64 (T) or (B, T), where
/// each sees those of its own chunk: bool (T, T), or (B, 1, T, T).
torch::Tensor hidden_by_chunk(const torch::Tensor& positions, int64_t chunk);

} // namespace torch_attention::detail
