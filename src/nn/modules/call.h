#pragma once

#include <torch_attention/nn/functional/attention.h>
#include <torch_attention/nn/options/block_scope.h>
#include <torch_attention/nn/options/forward.h>

#include <torch/types.h>

#include <cstdint>
#include <string>
#include <vector>

/// The arguments of one call of a module, made into those of functional
/// attention. `name` is the module that the messages name.
namespace torch_attention::detail {

/// Returns true if `call` has no argument.
bool is_empty(const ForwardOptions& call);

/// Returns true if x (N, d_in) is packed sequences, which get a batch of size 1
/// to be computed.
bool lacks_batch(const torch::Tensor& x, const ForwardOptions& call);

/// B sequences of T queries and S keys; packed ones as in a padded batch.
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

/// Checks what hides and adds, and puts it into `options`. `scores` are the
/// sizes of the module's scores: (B, H, T, S), (B, T, S), or (T, S) without a
/// batch; `scope` is what its blocks set aside.
void set_call(
    const char* name,
    const ForwardOptions& call,
    const std::vector<int64_t>& scores,
    functional::ScaledDotProductAttentionFuncOptions& options,
    BlockScope scope = BlockScope::kCausal);

/// Returns ", what dtype shape layout device", and whether autograd records it;
/// nothing if x is undefined.
std::string text_of(const char* what, const torch::Tensor& x);

/// Returns `what` and the numbers, int64 (B) on the CPU; nothing if they are
/// undefined.
std::string text_of_counts(const char* what, const torch::Tensor& counts);

/// Returns the arguments that may be learned, in words.
std::string describe_learned(const ForwardOptions& call);

/// Returns the positions of `call`, int64 (T) or (B, T), for x (B, T, ...); for
/// packed tokens, each one's position in its own sequence; undefined if there
/// are none.
torch::Tensor positions_of(
    const char* name,
    const ForwardOptions& call,
    const torch::Tensor& x);

/// Returns the positions that chunks go by where none are given, int64 (S) or
/// (B, S): 0 is the first key of each sequence that `key_padding_mask` leaves,
/// as Python counts them. Undefined if that is the first of all.
torch::Tensor positions_after_padding(const torch::Tensor& key_padding_mask);

/// Lets chunks go by the positions of `call`, or begin after the padding of
/// each sequence of x (B, T, ...), where `options` have chunks: puts them into
/// the mask of scores of three or four dimensions. Call it after `set_call`.
void set_chunks(
    const char* name,
    const torch::Tensor& x,
    const ForwardOptions& call,
    size_t num_score_dims,
    functional::ScaledDotProductAttentionFuncOptions& options);

} // namespace torch_attention::detail
