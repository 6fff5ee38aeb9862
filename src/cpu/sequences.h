#pragma once

#include <cpu/attention.h>

#include <algorithm>
#include <cstdint>
#include <vector>

/// Packed sequences, each as an attention of its own.
namespace torch_attention::cpu {

/// The sequences whose tasks threads take together. A packed one, by itself,
/// still counts all.
template <typename X>
int64_t num_sequences(const AttentionArguments<X>& a) {
  return std::max(a.batch_size, a.num_sequences);
}

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

/// Sequence `i` of the packed ones.
template <typename X>
AttentionArguments<X> sequence_of(
    const AttentionArguments<X>& packed,
    int64_t i) {
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
  if (packed.query_offsets != nullptr) {
    a.query_offsets += i;
  }
  if (packed.key_lengths != nullptr) {
    a.key_lengths += i;
  }
  a.dropout_first_head +=
      i * std::max(packed.num_heads, packed.dropout_num_heads);
  a.query_starts = nullptr;
  a.key_starts = nullptr;
  return a;
}

/// The gradients of sequence `i`.
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

/// The sequences, those with the most scores first, so that threads end
/// together.
template <typename X>
std::vector<int64_t> heaviest_sequences_first(
    const AttentionArguments<X>& packed) {
  std::vector<int64_t> order(static_cast<size_t>(packed.num_sequences));
  for (size_t i = 0; i < order.size(); ++i) {
    order[i] = static_cast<int64_t>(i);
  }
  const auto num_scores = [&](int64_t i) {
    const auto count = [i](const int64_t* starts) {
      return static_cast<double>(starts[i + 1] - starts[i]);
    };
    return count(packed.query_starts) * count(packed.key_starts);
  };
  std::stable_sort(order.begin(), order.end(), [&](int64_t a, int64_t b) {
    return num_scores(a) > num_scores(b);
  });
  return order;
}

} // namespace torch_attention::cpu
