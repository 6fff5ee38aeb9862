#pragma once

#include <nn/modules/call.h>
#include <torch_attention/nn/functional/attention.h>
#include <torch_attention/nn/kv_cache.h>
#include <torch_attention/nn/options/forward.h>
#include <torch_attention/nn/options/rotary.h>

#include <torch/types.h>

#include <cstdint>

/// One call of `decode`: which tokens are new, and where they stand in the
/// cache. `name` is the module that the messages name.
namespace torch_attention::detail {

/// The tokens that one call adds to a cache.
struct NewTokens {
  /// int64 (B) on the CPU; undefined: all T.
  torch::Tensor counts;
  /// The length of each sequence before them, int64 (B) on the CPU.
  torch::Tensor before;
  /// The distances by which the tokens of each sequence of a left-padded batch
  /// have to move to begin at 0, int64 (B) on the CPU; undefined if they need
  /// not.
  torch::Tensor padding;
  /// The longest sequence's length before and after them.
  int64_t most_before = 0;
  int64_t most_after = 0;
};

/// Throws c10::Error if a sequence would become longer than `context_length`.
NewTokens new_tokens(
    const char* name,
    const torch::Tensor& x,
    const KVCache& cache,
    const DecodeOptions& call,
    int64_t context_length);

/// Returns whether LongRoPE rotates the new tokens as those of long texts.
/// Throws c10::Error if the keys in the cache, which are those of long texts if
/// `was_long`, were rotated otherwise.
bool checked_rotation(
    const char* name,
    const RotaryOptions& rotary,
    const NewTokens& tokens,
    bool was_long);

/// x (B, T, C) with the tokens of sequence b moved by `by[b]` places to the
/// front; what leaves at one end, which is padding, comes in at the other.
torch::Tensor moved_tokens(const torch::Tensor& x, const torch::Tensor& by);

/// Says which rows of `cache` T queries see, the first of which stand at the
/// positions `first`, int64 (B) on the CPU.
void set_rows_of_cache(
    const KVCache& cache,
    const torch::Tensor& first,
    int64_t T,
    functional::ScaledDotProductAttentionFuncOptions& options);

/// Puts the blocks of `call` into `options`, beside the mask there: those of
/// `sizes.T` queries that see rows of `cache`.
void set_blocks_of_decode(
    const char* name,
    const DecodeOptions& call,
    const KVCache& cache,
    const NewTokens& tokens,
    const CallSizes& sizes,
    BlockScope scope,
    functional::ScaledDotProductAttentionFuncOptions& options);

/// Checks bias and function of `call` for T queries of `num_heads` heads and
/// the rows of `cache`, and puts them into `options`.
void set_scores_of_call(
    const char* name,
    const DecodeOptions& call,
    const KVCache& cache,
    int64_t T,
    int64_t num_heads,
    functional::ScaledDotProductAttentionFuncOptions& options);

} // namespace torch_attention::detail
