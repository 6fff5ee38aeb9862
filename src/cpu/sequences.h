#pragma once

#include <cpu/attention.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <vector>

/// Packed sequences as separate attentions.
namespace torch_attention::cpu {

/// Returns the number of sequences whose tasks share the threads.
template <typename X>
int64_t num_sequences(const AttentionArguments<X>& a) {
  return std::max(a.batch_size, a.num_sequences);
}

/// One of the packed sequences.
struct PackedSequence {
  int64_t index = 0;
  /// total work divided by this sequence's work, at most the number of
  /// sequences
  int64_t equals = 1;
};

template <typename T>
Heads<T> from_token(const Heads<T>& x, int64_t token) {
  return {x.data + token * x.strides.token, x.strides};
}

template <typename T>
Scores<T> from_sequence(Scores<T> x, int64_t i) {
  if (x.data != nullptr) {
    x.data += i * x.batch;
  }
  return x;
}

template <typename T>
RowStatistics<T> from_token(
    const RowStatistics<T>& x,
    int64_t token,
    int64_t num_heads) {
  const auto row = token * num_heads;
  return x.sum == nullptr ? x : RowStatistics<T>{x.maximum + row, x.sum + row};
}

/// Returns one of the packed sequences as a separate attention.
template <typename X>
AttentionArguments<X> sequence_of(
    const AttentionArguments<X>& packed,
    const PackedSequence& sequence) {
  const auto i = sequence.index;
  const auto first_query = packed.query_starts[i];
  const auto first_key = packed.key_starts[i];
  auto a = packed;
  a.num_queries = packed.query_starts[i + 1] - first_query;
  a.num_keys = packed.key_starts[i + 1] - first_key;
  a.query = from_token(packed.query, first_query);
  a.key = from_token(packed.key, first_key);
  a.value = from_token(packed.value, first_key);
  a.bias = from_sequence(packed.bias, i);
  a.wide_bias = from_sequence(packed.wide_bias, i);
  a.mask = from_sequence(packed.mask, i);
  a.mask_tiles = from_sequence(packed.mask_tiles, i);
  if (packed.query_offsets != nullptr) {
    a.query_offsets += i;
  }
  if (packed.key_lengths != nullptr) {
    a.key_lengths += i;
  }
  a.dropout_first_head +=
      i * std::max(packed.num_heads, packed.dropout_num_heads);
  a.num_sequences = sequence.equals;
  a.query_starts = nullptr;
  a.key_starts = nullptr;
  return a;
}

/// Returns the gradients of sequence `i`.
template <typename X>
BackwardArguments<X> sequence_of(
    const AttentionArguments<X>& packed,
    const BackwardArguments<X>& gradients,
    int64_t i) {
  const auto first_query = packed.query_starts[i];
  const auto first_key = packed.key_starts[i];
  auto g = gradients;
  g.output = from_token(gradients.output, first_query);
  g.statistics =
      from_token(gradients.statistics, first_query, packed.num_heads);
  g.grad_output = from_token(gradients.grad_output, first_query);
  g.grad_query = from_token(gradients.grad_query, first_query);
  g.grad_key = from_token(gradients.grad_key, first_key);
  g.grad_value = from_token(gradients.grad_value, first_key);
  g.grad_bias = from_sequence(gradients.grad_bias, i);
  return g;
}

/// Returns the sequences with the most scores first, so that threads end
/// together.
template <typename X>
std::vector<PackedSequence> heaviest_sequences_first(
    const AttentionArguments<X>& packed) {
  const auto num_scores = [&](int64_t i) {
    const auto count = [i](const int64_t* starts) {
      return static_cast<double>(starts[i + 1] - starts[i]);
    };
    return count(packed.query_starts) * count(packed.key_starts);
  };
  const auto n = packed.num_sequences;
  double total = 0;
  for (int64_t i = 0; i < n; ++i) {
    total += num_scores(i);
  }
  std::vector<PackedSequence> sequences;
  sequences.reserve(static_cast<size_t>(n));
  for (int64_t i = 0; i < n; ++i) {
    const auto own = num_scores(i);
    const bool is_light = own * static_cast<double>(n) <= total;
    sequences.push_back(
        {i, is_light ? n : static_cast<int64_t>(std::ceil(total / own))});
  }
  std::stable_sort(
      sequences.begin(), sequences.end(), [&](const auto& a, const auto& b) {
        return num_scores(a.index) > num_scores(b.index);
      });
  return sequences;
}

} // namespace torch_attention::cpu
