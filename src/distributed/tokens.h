#pragma once

#include <torch_attention/distributed/sequence_parallel.h>

#include <cstdint>
#include <functional>
#include <vector>

/// The distribution of tokens over processes.
namespace torch_attention::distributed {

/// Tokens [start, end).
struct Span {
  int64_t start = 0;
  int64_t end = 0;

  int64_t size() const {
    return end - start;
  }
};

/// Returns the spans of the tokens of process `rank` out of `size`, in the
/// order of its tensors, for sequences of `num_tokens`. Throws c10::Error if
/// the tokens cannot be divided.
std::vector<Span> spans_of(
    const char* name,
    int64_t num_tokens,
    int64_t rank,
    int64_t size,
    TokenLayout layout);

/// `in_order` sorts tokens (..., T, ...) that are concatenated by process into
/// the order of the sequence; `by_process` does the reverse.
torch::Tensor in_order(
    const torch::Tensor& x,
    int64_t dim,
    const Group& group,
    TokenLayout layout);
torch::Tensor by_process(
    const torch::Tensor& x,
    int64_t dim,
    const Group& group,
    TokenLayout layout);

/// The numbers of tokens in whole sequences.
struct WholeSizes {
  int64_t num_queries;
  int64_t num_keys;
};
WholeSizes whole_sizes(
    const torch::Tensor& query,
    const torch::Tensor& key,
    const Group& group,
    const SequenceOptions& sequence);

/// Checks that mask and bias broadcast to the scores (B, H, T/P, S) of this
/// process's queries.
void check_scores(
    const char* name,
    const functional::ScaledDotProductAttentionFuncOptions& options,
    const torch::Tensor& query,
    int64_t num_keys);

/// Checks the arguments of ring or all-to-all attention: what both require,
/// then by `check` what one of them requires, and that all processes call the
/// same. Throws c10::Error in all of them.
void check_call(
    const char* name,
    const torch::Tensor& query,
    const torch::Tensor& key,
    const torch::Tensor& value,
    const Group& group,
    const functional::ScaledDotProductAttentionFuncOptions& options,
    const SequenceOptions& sequence,
    const std::function<void()>& check);

} // namespace torch_attention::distributed
