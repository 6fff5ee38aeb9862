#pragma once

#include <torch_attention/distributed/sequence_parallel.h>

#include <cstdint>
#include <functional>
#include <vector>

/// The division of tokens among processes.
namespace torch_attention::distributed {

/// Tokens [start, end).
struct Span {
  int64_t start = 0;
  int64_t end = 0;

  int64_t size() const {
    return end - start;
  }
};

/// Returns the spans of the tokens of process `rank` of `size`, in the order in
/// which it has them, of sequences of `num_tokens`.
/// Throws c10::Error if these cannot be divided.
std::vector<Span> spans_of(
    const char* name,
    int64_t num_tokens,
    int64_t rank,
    int64_t size,
    TokenLayout layout);

/// Brings tokens (..., T, ...) that come from process after process into their
/// order in the sequence, or back.
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

/// The tokens of whole sequences.
struct WholeSizes {
  int64_t num_queries;
  int64_t num_keys;
};
WholeSizes whole_sizes(
    const torch::Tensor& query,
    const torch::Tensor& key,
    const Group& group,
    const SequenceOptions& sequence);

/// Checks that mask and bias broadcast to the scores (B, H, T/P, S) of the own
/// queries.
void check_scores(
    const char* name,
    const functional::ScaledDotProductAttentionFuncOptions& options,
    const torch::Tensor& query,
    int64_t num_keys);

/// Checks what both ways to share tokens ask of their arguments, by `check`
/// what one of them asks beside, and that all processes have the same. Throws
/// c10::Error in all of them.
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
