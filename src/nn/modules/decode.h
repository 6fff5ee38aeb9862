#pragma once

#include <nn/modules/cache_view.h>
#include <nn/modules/call.h>
#include <torch_attention/nn/functional/attention.h>
#include <torch_attention/nn/options/forward.h>
#include <torch_attention/nn/options/rotary.h>

#include <torch/types.h>

#include <cstdint>
#include <string>

/// One call of `decode`: the new tokens and their positions in the cache.
/// `name` is the module in messages.
namespace torch_attention::detail {

/// The tokens that one call adds to a cache.
struct NewTokens {
  /// The number of new tokens per sequence, int64 (B) on the CPU; undefined: T.
  torch::Tensor counts;
  /// The length of each sequence in the cache before, int64 (B) on the CPU.
  torch::Tensor before;
  /// The number of padding tokens before the tokens of each sequence of a
  /// left-padded batch, int64 (B) on the CPU; undefined if there are none.
  torch::Tensor padding;
  /// The largest length of a sequence before and after.
  int64_t most_before = 0;
  int64_t most_after = 0;
};

/// Throws c10::Error if a sequence would become longer than `context_length`.
NewTokens new_tokens(
    const char* name,
    const torch::Tensor& x,
    const CacheView& cache,
    const DecodeOptions& call,
    int64_t context_length);

/// Describes the arguments of `decode` that have to be equal in all processes.
std::string describe_decode(
    const CacheView& cache,
    const DecodeOptions& call,
    const NewTokens& tokens);

/// Throws c10::Error if LongRoPE has other frequencies for the new tokens than
/// it had for the tokens in the cache.
void check_rotates_alike(
    const char* name,
    const RotaryOptions& rotary,
    const NewTokens& tokens,
    const CacheView& cache);

/// Returns x (B, T, ...) with the tokens of left-padded sequences first and
/// their padding last.
torch::Tensor padding_last(const torch::Tensor& x, const NewTokens& tokens);

/// Reverses `padding_last`.
torch::Tensor padding_first(const torch::Tensor& x, const NewTokens& tokens);

/// Sets key_lengths and query_offsets for T queries that attend to the rows of
/// `cache`, from the positions `first` on, int64 (B) on the CPU.
void set_rows_of_cache(
    const CacheView& cache,
    const torch::Tensor& first,
    int64_t T,
    functional::ScaledDotProductAttentionFuncOptions& options);

/// Adds the blocks of `call` to the mask of `options`, for `sizes.T` queries
/// that attend to the rows of `cache`.
void set_decode_blocks(
    const char* name,
    const DecodeOptions& call,
    const CacheView& cache,
    const NewTokens& tokens,
    const CallSizes& sizes,
    BlockScope scope,
    functional::ScaledDotProductAttentionFuncOptions& options);

/// Checks bias and score function of `call` for new tokens with `num_heads`
/// heads, and sets them in `options`. `sizes.S` is the length of the longest
/// sequence including the new tokens.
void set_decode_scores(
    const char* name,
    const DecodeOptions& call,
    const CacheView& cache,
    const CallSizes& sizes,
    int64_t num_heads,
    functional::ScaledDotProductAttentionFuncOptions& options);

} // namespace torch_attention::detail
