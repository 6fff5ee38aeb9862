#pragma once

#include <kernels/attention.h>

#include <cstdint>
#include <limits>
#include <utility>

/// Tensors that follow from the positions of queries and keys.
namespace torch_attention::kernels {

/// The score of a hidden key.
inline constexpr double kHidden = -std::numeric_limits<double>::infinity();

/// Returns a bool tensor (T, S), true for the keys after a query's own
/// position.
torch::Tensor causal_mask(int64_t T, int64_t S, torch::Device device);

/// Returns true if one of T queries may have none of S keys to attend to.
bool may_hide_all_keys(const Attention& attention, int64_t T, int64_t S);

/// Returns true if the position of a key may hide it.
bool hides_by_position(const Attention& attention);

/// Returns a bool tensor that broadcasts to scores (..., T, S) of `dim`
/// dimensions, true where rule or `key_lengths` hide. Undefined if they never
/// do.
torch::Tensor hidden_by_position(
    const Attention& attention,
    int64_t dim,
    int64_t T,
    int64_t S,
    torch::Device device);

/// Returns the first key and the key after the last that some of `num_queries`
/// from position `first` on see, of keys from position 0 on.
std::pair<int64_t, int64_t> visible_keys(
    const ScoreRule& rule,
    int64_t first,
    int64_t num_queries,
    int64_t num_keys);

/// Returns which queries of `attention` (B, H, T, D) see no key: bool that
/// broadcasts to (B, H, T). `hidden` is undefined or bool that broadcasts to
/// (B, H, 1, S), true hides a key from all queries. Undefined if all see one.
/// For rules without lengths, offsets and chunks.
torch::Tensor queries_without_key(
    const Attention& attention,
    const torch::Tensor& hidden);

/// Returns the bias by position for scores of `dim` dimensions: (H, T, S) or
/// (B, H, T, S) in the dtype of `alibi_slopes`. Undefined if there is none.
torch::Tensor added_by_position(
    const Attention& attention,
    int64_t dim,
    int64_t T,
    int64_t S,
    torch::Device device);

} // namespace torch_attention::kernels
