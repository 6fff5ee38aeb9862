#pragma once

#include <torch_attention/nn/functional/attention.h>
#include <torch_attention/nn/options/block_scope.h>
#include <torch_attention/nn/options/forward.h>

#include <torch/types.h>

#include <cstdint>
#include <string>
#include <vector>

/// Translates the arguments of one call of a module into options of functional
/// attention. `name` is the module in messages.
namespace torch_attention::detail {

/// Returns whether no argument is set.
bool is_empty(const ForwardOptions& call);

/// Returns whether x (N, d_in) contains packed sequences and needs a batch
/// dimension of size 1.
bool lacks_batch(const torch::Tensor& x, const ForwardOptions& call);

/// Returns `call` for x (1, N, d_in) made of x (N, d_in).
ForwardOptions with_batch(const ForwardOptions& call);

/// B sequences of T queries and S keys; for packed sequences the sizes of the
/// padded batch.
struct CallSizes {
  int64_t B;
  int64_t T;
  int64_t S;
};

/// Returns the sizes of self-attention of x (B, T, ...) or (T, ...). Checks
/// `cu_seqlens`.
CallSizes call_sizes(
    const char* name,
    const torch::Tensor& x,
    const ForwardOptions& call);

/// Returns the sizes of attention of x (B, T, ...) to `context` (B, S, ...).
CallSizes call_sizes(
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

/// Checks `value_input`, which replaces `tokens`, named `what` in messages, for
/// the projection `weight`. It may be undefined unless it is `needed`.
void check_value_input(
    const char* name,
    const torch::Tensor& value_input,
    bool needed,
    const char* what,
    const torch::Tensor& tokens,
    const torch::Tensor& weight);

/// Checks masks, padding, blocks, bias and packing of `call`, and sets them in
/// `options`. Refuses `value_input` and `global_tokens`, which modules that
/// take them remove before. `scores` are the sizes of the module's scores: (B,
/// H, T, S), (B, T, S), or (T, S) without a batch; `scope` is the module's
/// `block_scope`.
void set_call(
    const char* name,
    const ForwardOptions& call,
    const std::vector<int64_t>& scores,
    functional::ScaledDotProductAttentionFuncOptions& options,
    BlockScope scope = BlockScope::kCausal);

/// Returns ", what dtype shape layout device", and whether autograd records it;
/// "" if x is undefined.
std::string text_of(const char* what, const torch::Tensor& x);

/// Returns `what` and the numbers, int64 (B) on the CPU: the first ones and a
/// hash of all, since each decode step compares them; "" if undefined.
std::string text_of_counts(const char* what, const torch::Tensor& counts);

/// Describes the arguments that may require gradients.
std::string describe_learned(const ForwardOptions& call);

/// Returns the positions of `call`, int64 (T) or (B, T), for x (B, T, ...); for
/// packed tokens the position of each in its sequence; undefined without
/// either.
torch::Tensor positions_of(
    const char* name,
    const ForwardOptions& call,
    const torch::Tensor& x);

/// Returns the positions by which chunks are divided without `positions`, int64
/// (S) or (B, S): as in `transformers`, they count from the first key of each
/// sequence that is not padding. Undefined if no sequence begins with padding.
torch::Tensor positions_after_padding(const torch::Tensor& key_padding_mask);

/// Returns the mask that hides all chunks but the query's own and as many
/// before it, for tokens at `positions`, int64 (T) or (B, T): bool (T, T), or
/// (B, 1, T, T).
torch::Tensor hidden_by_chunk(
    const torch::Tensor& positions,
    int64_t chunk,
    int64_t chunks_before);

/// Replaces the chunks of `options`, if any, by a mask for scores with three or
/// four dimensions, if chunks are divided by the positions of `call` or begin
/// after padding. `positions` are the checked positions of `call` for x (B, T,
/// ...). Call it after `set_call`.
void set_chunks(
    const torch::Tensor& x,
    const ForwardOptions& call,
    const torch::Tensor& positions,
    size_t num_score_dims,
    functional::ScaledDotProductAttentionFuncOptions& options);

/// Checks the positions of `call` if `options` have chunks, and calls
/// `set_chunks`.
void set_checked_chunks(
    const char* name,
    const torch::Tensor& x,
    const ForwardOptions& call,
    size_t num_score_dims,
    functional::ScaledDotProductAttentionFuncOptions& options);

} // namespace torch_attention::detail
