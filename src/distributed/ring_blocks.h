#pragma once

#include <distributed/tokens.h>
#include <kernels/attention.h>

#include <torch/types.h>

#include <cstdint>
#include <vector>

/// Attention of a process's queries to a part of all keys, and the merging of
/// such parts.
///
/// Sizes: B batch, H heads, G key heads, T queries of this process, n keys of a
/// part, D and E sizes of a head.
namespace torch_attention::distributed {

/// A call without its queries, keys and values. Mask and bias cover this
/// process's queries and the keys of all processes.
struct RingCall {
  ScoreRule rule;
  /// float (H), or undefined
  torch::Tensor alibi_slopes;
  torch::Tensor sinks;
  /// int64 (B), lengths of whole sequences, or undefined
  torch::Tensor key_lengths;
  torch::Tensor mask;
  torch::Tensor bias;
  /// 0 outside of training
  double dropout = 0.0;
  /// for this process's queries
  uint64_t dropout_seed = 0;
  /// The spans of this process's queries, in the order of the tensors.
  std::vector<Span> queries;
};

/// Dropout draws random numbers for this many keys at once, so its spans of
/// keys begin at multiples of it.
constexpr int64_t kDropoutKeys = 4;
/// With dropout, spans of queries begin at multiples of it.
constexpr int64_t kDropoutQueries = 2;

/// Returns a span of `keys` that includes all keys that some of `queries` see
/// by the rule. Empty if there are none.
Span seen_keys(
    const RingCall& call,
    const std::vector<Span>& queries,
    const Span& keys);

/// A partial softmax: the output for the keys so far, with the maximum and the
/// sum that normalised it. In double for double, otherwise in float.
struct RowSums {
  /// (B, H, T, E)
  torch::Tensor output;
  /// (B, H, T): the largest score, and the sum of exp(score - maximum)
  torch::Tensor maximum;
  torch::Tensor sum;
};

/// Returns the sums of no keys, for a query (B, H, T, D) and values of size E.
RowSums no_keys(const torch::Tensor& query, int64_t E);

/// Merges in the keys (B, G, n, D) and values (B, G, n, E) at `span` of the
/// sequence.
void add_keys(
    const RingCall& call,
    const torch::Tensor& query,
    const torch::Tensor& key,
    const torch::Tensor& value,
    const Span& span,
    RowSums& sums);

/// Merges the sums of P parts of the keys, each (P, ...).
RowSums joined(const RowSums& parts);

/// Adds the weights of the sinks, after all keys.
void add_sinks(const RingCall& call, RowSums& sums);

/// Gradients that are summed over the parts of the keys, in the dtype of the
/// sums.
struct QueryGradients {
  /// (B, H, T, D)
  torch::Tensor query;
  /// Shaped like the call's bias and slopes; undefined if not needed.
  torch::Tensor bias;
  torch::Tensor slopes;
};

/// Gradients of keys (B, G, n, D) and values (B, G, n, E).
struct KeyGradients {
  torch::Tensor key;
  torch::Tensor value;
};
/// Returns the gradients of keys and values given to `add_keys`, and adds the
/// gradients of the queries to `of_queries`. `sums` include all keys and sinks.
KeyGradients gradients_of_keys(
    const RingCall& call,
    const torch::Tensor& query,
    const torch::Tensor& key,
    const torch::Tensor& value,
    const Span& span,
    const RowSums& sums,
    const torch::Tensor& grad_output,
    const QueryGradients& of_queries);

/// Returns the gradient of the sinks (H).
torch::Tensor gradient_of_sinks(
    const RingCall& call,
    const RowSums& sums,
    const torch::Tensor& grad_output);

} // namespace torch_attention::distributed
