#pragma once

#include <nn/modules/cache_view.h>
#include <nn/modules/decode.h>
#include <nn/modules/indexer.h>
#include <nn/modules/projected.h>
#include <nn/rotary.h>
#include <torch_attention/nn/functional/attention.h>
#include <torch_attention/nn/modules/latent_attention.h>
#include <torch_attention/nn/options/forward.h>

#include <torch/types.h>

#include <cstdint>

/// Projects tokens to the latent vectors and heads of `LatentAttention`.
namespace torch_attention::detail {

constexpr const char* kLatent = "LatentAttention";

/// Returns the sizes of a cached row: latent vector, rotated part of the key,
/// and the indexer's key, if there is an indexer.
int64_t row_size(const LatentAttentionOptions& options);

/// The positions of the tokens of one call.
struct LatentPlaces {
  /// Empty without rotary embedding.
  RotaryAngles angles;
  /// int64 (T) or (B, T); undefined without temperature.
  torch::Tensor of_temperature;
};

/// Returns the positions of the tokens x (B, T, d_in) in a call of `forward`.
/// `table` is null without rotary embedding.
LatentPlaces places_of(
    const LatentAttentionOptions& options,
    RotaryTable* table,
    const torch::Tensor& x,
    const ForwardOptions& call);

/// Returns the positions of the tokens x (B, T, d_in) that `decode` adds.
LatentPlaces places_of(
    const LatentAttentionOptions& options,
    RotaryTable* table,
    const torch::Tensor& x,
    const CacheView& cache,
    const DecodeOptions& call,
    const NewTokens& tokens);

/// Returns the rows of the cache for each token, (B, 1, T, row_size).
torch::Tensor latents_of(
    LatentAttentionImpl& module,
    const torch::Tensor& x,
    const LatentPlaces& places);

/// The two parts of each head's query, (B, num_heads, T, ...), and the
/// indexer's queries, if there is an indexer.
struct LatentQueries {
  torch::Tensor nope;
  torch::Tensor rotated;
  IndexQueries index;
};

LatentQueries queries_of(
    LatentAttentionImpl& module,
    const torch::Tensor& x,
    const LatentPlaces& places);

/// Hides the keys that the indexer does not choose, if there is one; `rows` are
/// those of the cache (B, 1, S, row_size).
void hide_unchosen(
    const LatentAttentionImpl& module,
    const LatentQueries& queries,
    const torch::Tensor& rows,
    functional::ScaledDotProductAttentionFuncOptions& func);

/// Returns queries, keys and values of all heads; `latents` are rows of the
/// cache (B, 1, S, row_size).
Projected expanded(
    LatentAttentionImpl& module,
    const LatentQueries& queries,
    const torch::Tensor& latents);

} // namespace torch_attention::detail
