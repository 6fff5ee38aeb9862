#pragma once

#include <cpu/attention.h>
#include <cpu/numbers.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <vector>

/// Attention as it is defined, in double and in plain loops: what the kernels
/// are compared with.
namespace torch_attention::cpu::testing {

/// Philox4x32: the counter becomes four random numbers.
inline void philox(
    uint32_t (&counter)[4],
    uint32_t key0,
    uint32_t key1,
    int rounds = 7) {
  for (int round = 0; round < rounds; ++round) {
    const uint64_t product0 = uint64_t{0xD2511F53} * counter[0];
    const uint64_t product1 = uint64_t{0xCD9E8D57} * counter[2];
    counter[0] = static_cast<uint32_t>(product1 >> 32) ^ counter[1] ^ key0;
    counter[1] = static_cast<uint32_t>(product1);
    counter[2] = static_cast<uint32_t>(product0 >> 32) ^ counter[3] ^ key1;
    counter[3] = static_cast<uint32_t>(product0);
    key0 += 0x9E3779B9U;
    key1 += 0xBB67AE85U;
  }
}

/// How many of 65536 equally likely numbers drop a weight.
inline uint32_t dropout_threshold(double dropout) {
  return static_cast<uint32_t>(dropout * 65536 + 0.5);
}

/// Returns the factor of the weights that are not dropped.
inline double dropout_scale(double dropout) {
  const auto threshold = dropout_threshold(dropout);
  return threshold < 65536 ? 65536.0 / (65536 - threshold) : 0.0;
}

/// True if the weight of key s for query t is dropped. One call of Philox
/// serves two queries and four keys, of a head b * H + h.
inline bool dropped(
    int64_t head,
    int64_t t,
    int64_t s,
    double dropout,
    uint64_t seed) {
  uint32_t numbers[4] = {
      static_cast<uint32_t>(t / 2),
      static_cast<uint32_t>(s / 4),
      static_cast<uint32_t>(head),
      static_cast<uint32_t>(head >> 32)};
  philox(
      numbers, static_cast<uint32_t>(seed), static_cast<uint32_t>(seed >> 32));
  const uint32_t two_keys = numbers[2 * (s % 4 / 2) + t % 2];
  const uint32_t one_key = s % 2 == 0 ? two_keys & 0xFFFF : two_keys >> 16;
  return one_key < dropout_threshold(dropout);
}

/// Returns the number that is added to a score.
template <typename X>
double bias_of(
    const AttentionArguments<X>& a,
    int64_t b,
    int64_t h,
    int64_t t,
    int64_t s) {
  const auto bias_at = [&](const auto& bias) {
    return bias.data == nullptr ? 0.0
                                : number(bias.data
                                             [b * bias.batch + h * bias.head +
                                              t * bias.query + s * bias.key]);
  };
  return bias_at(a.bias) + bias_at(a.wide_bias);
}

/// Has more bits than positions, since sums of positions may overflow.
using Wide = long double;

/// The position of query t among the keys.
template <typename X>
Wide position_of(const AttentionArguments<X>& a, int64_t b, int64_t t) {
  const auto first = a.query_offsets != nullptr ? a.query_offsets[b]
                                                : a.num_keys - a.num_queries;
  return static_cast<Wide>(first) + static_cast<Wide>(t);
}

/// The distance between query t and key s.
template <typename X>
double distance_of(
    const AttentionArguments<X>& a,
    int64_t b,
    int64_t t,
    int64_t s) {
  return static_cast<double>(
      std::abs(position_of(a, b, t) - static_cast<Wide>(s)));
}

/// Returns the number that distance takes from a score.
template <typename X>
double alibi_of(
    const AttentionArguments<X>& a,
    int64_t b,
    int64_t h,
    int64_t t,
    int64_t s) {
  if (a.alibi_slopes == nullptr) {
    return 0;
  }
  return static_cast<double>(a.alibi_slopes[h]) * distance_of(a, b, t, s);
}

/// True if query t sees key s.
template <typename X>
bool sees(
    const AttentionArguments<X>& a,
    int64_t b,
    int64_t h,
    int64_t t,
    int64_t s) {
  const auto position = position_of(a, b, t);
  const auto key = static_cast<Wide>(s);
  if (a.key_lengths != nullptr && s >= a.key_lengths[b]) {
    return false;
  }
  if (a.rule.causal && key > position) {
    return false;
  }
  if (a.rule.window && key <= position - static_cast<Wide>(*a.rule.window)) {
    return false;
  }
  if (a.rule.window_after &&
      key > position + static_cast<Wide>(*a.rule.window_after)) {
    return false;
  }
  if (a.rule.chunk) {
    const auto chunk = static_cast<Wide>(*a.rule.chunk);
    if (std::floor(position / chunk) != std::floor(key / chunk)) {
      return false;
    }
  }
  if (a.mask.data != nullptr &&
      a.mask.data
          [b * a.mask.batch + h * a.mask.head + t * a.mask.query +
           s * a.mask.key]) {
    return false;
  }
  return bias_of(a, b, h, t, s) != -kInfinity;
}

/// (B, heads, tokens, features), contiguous.
template <typename X>
std::vector<double> numbers_of(
    const Heads<X>& x,
    int64_t batch_size,
    int64_t heads,
    int64_t tokens,
    int64_t features) {
  std::vector<double> result;
  result.reserve(static_cast<size_t>(batch_size * heads * tokens * features));
  for (int64_t b = 0; b < batch_size; ++b) {
    for (int64_t h = 0; h < heads; ++h) {
      for (int64_t n = 0; n < tokens; ++n) {
        const auto* token = x.data + b * x.strides.batch + h * x.strides.head +
            n * x.strides.token;
        for (int64_t i = 0; i < features; ++i) {
          result.push_back(number(token[i]));
        }
      }
    }
  }
  return result;
}

/// All contiguous: (B, heads, tokens, features), logsumexp (B, H, T).
struct Attention {
  std::vector<double> output;
  std::vector<double> logsumexp;
  std::vector<double> grad_query;
  std::vector<double> grad_key;
  std::vector<double> grad_value;
  std::vector<double> grad_slopes; // (H)
  std::vector<double> grad_sinks; // (H)
  std::vector<double> grad_bias; // (B, H, T, S)
};

/// The inputs as numbers, contiguous.
struct Inputs {
  std::vector<double> query;
  std::vector<double> key;
  std::vector<double> value;
  std::vector<double> grad_output;
};

/// One query of one head: where it is, what it reads, and what it adds to.
struct Row {
  int64_t b;
  int64_t h;
  int64_t t;
  /// The head that dropout counts.
  int64_t dropout_head;
  const double* q;
  const double* k;
  const double* v;
  const double* grad_o;
  double* o;
  double* grad_q;
  double* grad_k;
  double* grad_v;
  double* grad_bias;
};

template <typename X>
Row row_at(
    const AttentionArguments<X>& a,
    const Inputs& inputs,
    Attention& result,
    int64_t index) {
  const auto H = a.num_heads;
  const auto G = a.num_kv_heads;
  const auto D = a.head_dim;
  const auto E = a.value_dim;
  Row row;
  row.b = index / a.num_queries / H;
  row.h = index / a.num_queries % H;
  row.t = index % a.num_queries;
  row.dropout_head =
      row.b * std::max(H, a.dropout_num_heads) + a.dropout_first_head + row.h;
  const auto first_key = (row.b * G + row.h / (H / G)) * a.num_keys;
  row.q = inputs.query.data() + index * D;
  row.k = inputs.key.data() + first_key * D;
  row.v = inputs.value.data() + first_key * E;
  row.grad_o = inputs.grad_output.data() + index * E;
  row.o = result.output.data() + index * E;
  row.grad_q = result.grad_query.data() + index * D;
  row.grad_k = result.grad_key.data() + first_key * D;
  row.grad_v = result.grad_value.data() + first_key * E;
  row.grad_bias = result.grad_bias.data() + index * a.num_keys;
  return row;
}

/// The keys that a query sees, and a number for each key of the sequence.
struct Weights {
  std::vector<int64_t> seen;
  /// A score, and then its weight by the softmax.
  std::vector<double> weight;
  /// The derivative of the softcap.
  std::vector<double> slope;
  /// 0, or the factor of weights that dropout keeps.
  std::vector<double> factor;
  /// The logarithm of the sum of all weights.
  double logsumexp = 0;
  bool has_sink = false;
  double sink_weight = 0;
};

/// 1. Scores of the keys that are seen. Returns their maximum.
template <typename X>
double compute_scores(
    const AttentionArguments<X>& a,
    const Row& row,
    Weights& w) {
  const auto D = a.head_dim;
  const auto scale = a.rule.factor(D);
  w.seen.clear();
  double maximum = -kInfinity;
  for (int64_t s = 0; s < a.num_keys; ++s) {
    if (!sees(a, row.b, row.h, row.t, s)) {
      continue;
    }
    double score = 0;
    for (int64_t d = 0; d < D; ++d) {
      score += row.q[d] * row.k[s * D + d];
    }
    score *= scale;
    w.slope[s] = 1;
    if (a.rule.softcap) {
      const auto y = std::tanh(score / *a.rule.softcap);
      score = *a.rule.softcap * y;
      w.slope[s] = 1 - y * y;
    }
    score += bias_of(a, row.b, row.h, row.t, s) -
        alibi_of(a, row.b, row.h, row.t, s);
    // A score of -inf, as infinite keys may have, hides as well.
    if (score == -kInfinity) {
      continue;
    }
    w.seen.push_back(s);
    // NaN is the maximum of all.
    maximum = std::isnan(score) ? score : std::max(maximum, score);
    w.weight[s] = score;
  }
  return maximum;
}

/// 2. The softmax of the scores.
template <typename X>
void compute_weights(
    const AttentionArguments<X>& a,
    const Row& row,
    double maximum,
    Weights& w) {
  // A sink is the score of one more key, without a value.
  w.has_sink = a.sinks != nullptr && !w.seen.empty();
  const auto sink =
      w.has_sink ? static_cast<double>(a.sinks[row.h]) : -kInfinity;
  maximum = std::isnan(maximum) ? maximum : std::max(maximum, sink);
  w.sink_weight = w.has_sink ? std::exp(sink - maximum) : 0;
  double sum = w.sink_weight;
  for (const auto s : w.seen) {
    w.weight[s] = std::exp(w.weight[s] - maximum);
    sum += w.weight[s];
  }
  w.logsumexp = maximum + std::log(sum);
  w.sink_weight /= sum;
  for (const auto s : w.seen) {
    w.weight[s] /= sum;
  }
}

/// 3. The values' mean.
template <typename X>
void compute_output(
    const AttentionArguments<X>& a,
    const Row& row,
    Weights& w) {
  const auto E = a.value_dim;
  const auto kept = dropout_scale(a.dropout);
  for (const auto s : w.seen) {
    const bool drops = a.dropout > 0 &&
        dropped(row.dropout_head, row.t, s, a.dropout, a.dropout_seed);
    w.factor[s] = drops ? 0 : kept;
    for (int64_t e = 0; e < E; ++e) {
      // A weight of NaN stays one when it is dropped.
      row.o[e] += w.weight[s] * w.factor[s] * (drops ? 0 : row.v[s * E + e]);
    }
  }
}

/// 4. Gradients.
template <typename X>
void add_gradients(
    const AttentionArguments<X>& a,
    const Row& row,
    const Weights& w,
    Attention& result) {
  const auto D = a.head_dim;
  const auto E = a.value_dim;
  const auto scale = a.rule.factor(D);
  double mean = 0;
  for (int64_t e = 0; e < E; ++e) {
    mean += row.o[e] * row.grad_o[e];
  }
  if (w.has_sink) {
    result.grad_sinks[row.h] -= w.sink_weight * mean;
  }
  for (const auto s : w.seen) {
    double grad_weight = 0;
    for (int64_t e = 0; e < E && w.factor[s] != 0; ++e) {
      grad_weight += w.factor[s] * row.grad_o[e] * row.v[s * E + e];
      row.grad_v[s * E + e] += w.weight[s] * w.factor[s] * row.grad_o[e];
    }
    const auto grad_sum = w.weight[s] * (grad_weight - mean);
    row.grad_bias[s] = grad_sum;
    result.grad_slopes[row.h] -= grad_sum * distance_of(a, row.b, row.t, s);
    const auto grad_score = grad_sum * w.slope[s] * scale;
    for (int64_t d = 0; d < D; ++d) {
      row.grad_q[d] += grad_score * row.k[s * D + d];
      row.grad_k[s * D + d] += grad_score * row.q[d];
    }
  }
}

/// `grad_output` (B, H, T, E)
template <typename X>
Attention attention_by_definition(
    const AttentionArguments<X>& a,
    const Heads<const X>& grad_output) {
  const auto B = a.batch_size;
  const auto H = a.num_heads;
  const auto G = a.num_kv_heads;
  const auto T = a.num_queries;
  const auto S = a.num_keys;
  const auto D = a.head_dim;
  const auto E = a.value_dim;
  const Inputs inputs = {
      numbers_of(a.query, B, H, T, D),
      numbers_of(a.key, B, G, S, D),
      numbers_of(a.value, B, G, S, E),
      numbers_of(grad_output, B, H, T, E)};
  Attention result;
  result.output.resize(inputs.grad_output.size());
  result.logsumexp.resize(static_cast<size_t>(B * H * T));
  result.grad_query.resize(inputs.query.size());
  result.grad_key.resize(inputs.key.size());
  result.grad_value.resize(inputs.value.size());
  result.grad_slopes.resize(static_cast<size_t>(H));
  result.grad_sinks.resize(static_cast<size_t>(H));
  result.grad_bias.resize(static_cast<size_t>(B * H * T * S));

  Weights w;
  w.weight.resize(static_cast<size_t>(S));
  w.slope.resize(static_cast<size_t>(S));
  w.factor.resize(static_cast<size_t>(S));
  for (int64_t index = 0; index < B * H * T; ++index) {
    const auto row = row_at(a, inputs, result, index);
    const auto maximum = compute_scores(a, row, w);
    compute_weights(a, row, maximum, w);
    result.logsumexp[index] = w.logsumexp;
    compute_output(a, row, w);
    add_gradients(a, row, w, result);
  }
  return result;
}

} // namespace torch_attention::cpu::testing
