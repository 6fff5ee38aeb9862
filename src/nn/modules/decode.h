#pragma once

#include <nn/modules/call.h>
#include <torch_attention/nn/functional/attention.h>
#include <torch_attention/nn/kv_cache.h>
#include <torch_attention/nn/options/forward.h>
#include <torch_attention/nn/options/rotary.h>

#include <torch/types.h>

#include <cstdint>
#include <string>

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

/// Returns what has to be the same in all processes of a call of `decode`.
std::string describe_decode(
    const KVCache& cache,
    const DecodeOptions& call,
    const NewTokens& tokens);

/// Throws c10::Error if LongRoPE rotates the new tokens otherwise than it has
/// rotated those in the cache.
void check_rotates_alike(
    const char* name,
    const RotaryOptions& rotary,
    const NewTokens& tokens,
    const KVCache& cache);

/// Returns x (B, T, ...) with the tokens of left-padded sequences first and
/// their padding last.
torch::Tensor padding_last(const torch::Tensor& x, const NewTokens& tokens);

/// Returns x (B, T, ...) with the padding first, undoing `padding_last`.
torch::Tensor padding_first(const torch::Tensor& x, const NewTokens& tokens);

/// Says which rows of `cache` T queries see, the first of which stand at the
/// positions `first`, int64 (B) on the CPU.
void set_rows_of_cache(
    const KVCache& cache,
    const torch::Tensor& first,
    int64_t T,
    functional::ScaledDotProductAttentionFuncOptions& options);

/// Puts the blocks of `call` into `options`, beside the mask there: those of
/// `sizes.T` queries that see rows of `cache`.
void set_decode_blocks(
    const char* name,
    const DecodeOptions& call,
    const KVCache& cache,
    const NewTokens& tokens,
    const CallSizes& sizes,
    BlockScope scope,
    functional::ScaledDotProductAttentionFuncOptions& options);

/// Checks bias and function of `call` for new tokens of `num_heads` heads, and
/// puts them into `options`. `sizes.S` is the length of the longest sequence
/// with the new tokens.
void set_decode_scores(
    const char* name,
    const DecodeOptions& call,
    const KVCache& cache,
    const CallSizes& sizes,
    int64_t num_heads,
    functional::ScaledDotProductAttentionFuncOptions& options);

} // namespace torch_attention::detail
