#pragma once

#include <cpu/attention.h>
#include <torch_attention/nn/options/score_rule.h>

#include <torch/types.h>

#include <array>
#include <functional>
#include <tuple>
#include <type_traits>
#include <vector>

/// The kernels behind `functional::scaled_dot_product_attention`. They do not
/// check their arguments: what users pass is checked before.
namespace torch_attention::kernels {

/// Rules that have tensors, each of which may be undefined.
struct ScoreTensors {
  /// int64 (B) for a query (B, ..., T, D): hides the keys from here on
  torch::Tensor key_lengths;
  /// int64 (B), the position of the first query. Undefined: S - T
  torch::Tensor query_offsets;
  /// bool, broadcasts to (..., T, S), true hides
  torch::Tensor mask;
  /// `BlockMask::packed` of T queries and S keys on the CPU, for a query of two
  /// to four dimensions. `with_dense_mask` makes it a part of `mask`.
  torch::Tensor block_mask;
  /// broadcasts to (..., T, S)
  torch::Tensor bias;
  /// float32 or float64 (H) for a query (B, H, T, D): ALiBi slopes, which are
  /// subtracted from scores, times the distance between query and key
  torch::Tensor alibi_slopes;
  /// float32 or float64 (H): one more score for each query, without a value.
  /// For the reference it may also broadcast to (B, H, T).
  torch::Tensor sinks;
  /// int64 (B + 1) on the CPU, from 0 to T, for a query (1, H, T, D): the
  /// sequences are packed one after the other, and sequence i has the queries
  /// from `query_starts[i]` to `query_starts[i + 1]`. Mask and bias then have
  /// the shapes for a padded batch, and broadcast to (B, H, longest T, longest
  /// S).
  torch::Tensor query_starts;
  /// int64 (B + 1) on the CPU, from 0 to S, for the keys
  torch::Tensor key_starts;
};

/// The query's heads among all heads, which tensor-parallel processes share.
/// Dropout is keyed by their indices.
struct SharedHeads {
  int64_t first = 0;
  /// 0: these are all
  int64_t all = 0;
};

/// The positions of the first query and key among all tokens, which
/// context-parallel processes share. Dropout is keyed by them.
struct SharedTokens {
  /// even
  int64_t first_query = 0;
  /// a multiple of 4
  int64_t first_key = 0;
};

using cpu::kBlockTokens;

/// Keys and values of B sequences in the CPU's memory, in blocks of `size`
/// tokens.
struct KeyBlocks {
  /// (B, row): where the blocks (G, size, D) of keys and (G, size, Dv) of
  /// values of each sequence begin
  std::vector<const void*> keys;
  std::vector<const void*> values;
  int64_t row = 0;
  int64_t size = 0;
  /// distances of tokens in elements
  int64_t key_token = 0;
  int64_t value_token = 0;
};

/// Keys and values of a cache of int8, as in int8_rows.h.
struct Int8Keys {
  /// (B, G, S, D + kScaleBytes) and (B, G, S, Dv + kScaleBytes); undefined in
  /// blocks. Where keys have the values in them, they are the keys.
  torch::Tensor keys;
  torch::Tensor values;
  /// how many bytes after the beginning of a row its scale is
  int64_t key_scale = 0;
  int64_t value_scale = 0;
};

/// One attention to be computed. Sizes: T queries, S keys, D head_dim; `...`
/// leading dimensions, the same for query, key and value; or (..., H) for the
/// query and (..., G) for key and value, where H is a multiple of G and query
/// head h reads head h / (H / G).
struct Attention : ScoreTensors {
  ScoreRule rule;
  /// 0 outside training
  double dropout = 0.0;
  /// Whether `query_offsets` are known to be `key_lengths - T`, as in a cache:
  /// the last query sees the last key.
  bool ends_at_lengths = false;
  SharedHeads heads;
  SharedTokens tokens;
  /// Changes the scores (..., T, S) before the softmax. Empty: none. Only the
  /// reference calls it.
  std::function<torch::Tensor(const torch::Tensor&)> score_function;
  /// Changes the weights (..., T, S) after the softmax. Empty: none. Only the
  /// reference calls it.
  std::function<torch::Tensor(const torch::Tensor&)> weight_function;

  /// Returns whether a caller's function is set.
  bool calls_back() const {
    return score_function || weight_function;
  }

  /// (..., T, D)
  torch::Tensor query;
  /// (..., S, D)
  torch::Tensor key;
  /// (..., S, Dv)
  torch::Tensor value;
  /// If set, keys and values (B, G, S, ...) are read there, and `key` and
  /// `value` have only their sizes and dtype. For `tiled` alone, if
  /// `reads_blocks`.
  const KeyBlocks* blocks = nullptr;
  /// If set, keys and values are read there, or in `blocks`, and `key` and
  /// `value` have only their sizes. For `tiled` with a query of float32 alone,
  /// if `reads_blocks`.
  const Int8Keys* int8 = nullptr;
};

/// The indices in `tensors_of` of the tensors that have gradients.
enum Input : size_t { kQuery, kKey, kValue, kBias, kSlopes, kSinks };

/// Returns all tensors of `attention`, which is an Attention or a const one.
/// Tensors that have gradients come first.
template <typename T>
auto tensors_of(T& attention) {
  // A tensor that is added must be listed: this does not compile without it.
  std::conditional_t<std::is_const_v<T>, const ScoreTensors, ScoreTensors>&
      tensors = attention;
  auto& [key_lengths, query_offsets, mask, block_mask, bias, alibi_slopes, sinks, query_starts, key_starts] =
      tensors;
  return std::array{
      &attention.query,
      &attention.key,
      &attention.value,
      &bias,
      &alibi_slopes,
      &sinks,
      &key_lengths,
      &query_offsets,
      &mask,
      &block_mask,
      &query_starts,
      &key_starts};
}

/// Returns the output (..., T, Dv) and the weights (..., T, S) after dropout.
std::tuple<torch::Tensor, torch::Tensor> reference(const Attention& attention);

/// Returns the output (..., T, Dv). If the dropout mask `kept` (..., T, S) is
/// defined, the weights are multiplied by it instead of dropout.
torch::Tensor reference(const Attention& attention, const torch::Tensor& kept);

/// Returns the softmax of masked and scaled scores (..., T, S), which are
/// overwritten where autograd allows. query, key and value of `attention` are
/// not read.
torch::Tensor weights_of_scores(
    torch::Tensor scores,
    int64_t head_dim,
    const Attention& attention);

/// Returns the output (..., T, Dv), by our own kernels on the CPU.
torch::Tensor tiled(const Attention& attention);

/// Returns true if `tiled` computes `attention`.
bool is_tiled(const Attention& attention);

/// Returns the output (..., T, Dv), by LibTorch's kernels, on any device.
torch::Tensor libtorch(const Attention& attention);

/// Returns true if `libtorch` computes `attention`.
bool is_libtorch(const Attention& attention);

} // namespace torch_attention::kernels
