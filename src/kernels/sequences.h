#pragma once

#include <kernels/attention.h>

#include <cstdint>
#include <functional>

/// Packed sequences one by one, for kernels that do not support them.
namespace torch_attention::kernels {

inline bool is_packed(const Attention& attention) {
  return attention.query_starts.defined();
}

/// Returns the attention of packed sequence `i` as an unpacked one, of views.
Attention sequence_of(const Attention& packed, int64_t i);

/// Returns the output (1, H, T, Dv) of packed sequences, each of which
/// `output_of` computes.
torch::Tensor by_sequences(
    const Attention& packed,
    const std::function<torch::Tensor(const Attention&)>& output_of);

/// Returns the number of tokens of the longest sequence of `starts`, such as
/// `query_starts`.
int64_t longest_sequence(const torch::Tensor& starts);

} // namespace torch_attention::kernels
