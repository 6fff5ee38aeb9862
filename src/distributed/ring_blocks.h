#pragma once

#include <distributed/tokens.h>
#include <kernels/attention.h>

#include <torch/types.h>

#include <cstdint>
#include <vector>

/// Attention of a process's queries to a part of all keys, and how such parts
/// are joined.
///
/// Sizes: B batch, H heads, G key heads, T own queries, n keys of a part, D and
/// E sizes of a head.
namespace torch_attention::distributed {

/// Everything about one call but its tensors of queries, keys and values. Mask
/// and bias are for the own queries and the keys of all processes.
struct RingCall {
  kernels::ScoreRule rule;
  /// float (H), or undefined
  torch::Tensor alibi_slopes;
  torch::Tensor sinks;
  /// int64 (B), of whole sequences, or undefined
  torch::Tensor key_lengths;
  torch::Tensor mask;
  torch::Tensor bias;
  /// 0 outside training
  double dropout = 0.0;
  /// of the own queries
  uint64_t dropout_seed = 0;
  /// The own queries, in the order in which the tensors have them.
  std::vector<Span> queries;
};

/// Dropout draws numbers for so many keys at once: spans of keys begin at
/// multiples of it.
constexpr int64_t kDropoutKeys = 4;
/// Spans of queries begin at multiples of it.
constexpr int64_t kDropoutQueries = 2;

/// Returns a span of `keys` with all that some of `queries` see by the rule;
/// none if it is empty.
Span seen_keys(
    const RingCall& call,
    const std::vector<Span>& queries,
    const Span& keys);

/// Softmax in parts: the output so far, and what its weights were made of. In
/// float, or double for double.
struct RowSums {
  /// (B, H, T, E)
  torch::Tensor output;
  /// (B, H, T): the largest score, and the sum of exp(score - maximum)
  torch::Tensor maximum;
  torch::Tensor sum;
};

/// For a query (B, H, T, D) and values of size E: no keys yet.
RowSums no_keys(const torch::Tensor& query, int64_t E);

/// Adds the keys (B, G, n, D) and values (B, G, n, E) at `span` of the
/// sequence.
void add_keys(
    const RingCall& call,
    const torch::Tensor& query,
    const torch::Tensor& key,
    const torch::Tensor& value,
    const Span& span,
    RowSums& sums);

/// Returns the whole of what P parts of the keys gave, each (P, ...).
RowSums joined(const RowSums& parts);

/// Lets the sinks take their share, after all keys.
void add_sinks(const RingCall& call, RowSums& sums);

/// Gradients to which each part of the keys adds its own. In the dtype of sums.
struct QueryGradients {
  /// (B, H, T, D)
  torch::Tensor query;
  /// As the call's bias and slopes, or undefined if they are not wanted.
  torch::Tensor bias;
  torch::Tensor slopes;
};

/// The gradients of keys and values that `add_keys` got; adds to those of
/// queries. `sums` are those of all keys and sinks.
struct KeyGradients {
  torch::Tensor key;
  torch::Tensor value;
};
KeyGradients gradients_of_keys(
    const RingCall& call,
    const torch::Tensor& query,
    const torch::Tensor& key,
    const torch::Tensor& value,
    const Span& span,
    const RowSums& sums,
    const torch::Tensor& grad_output,
    const QueryGradients& of_queries);

/// The gradient of the sinks (H).
torch::Tensor gradient_of_sinks(
    const RingCall& call,
    const RowSums& sums,
    const torch::Tensor& grad_output);

} // namespace torch_attention::distributed
