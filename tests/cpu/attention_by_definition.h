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

/// More bits than positions have, whose sums may overflow.
using Wide = long double;

/// The position of query t among the keys.
template <typename X>
Wide position_of(const AttentionArguments<X>& a, int64_t b, int64_t t) {
  const auto first = a.query_offsets != nullptr ? a.query_offsets[b]
                                                : a.num_keys - a.num_queries;
  return static_cast<Wide>(first) + static_cast<Wide>(t);
}

/// Between query t and key s.
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
  const auto query = numbers_of(a.query, B, H, T, D);
  const auto key = numbers_of(a.key, B, G, S, D);
  const auto value = numbers_of(a.value, B, G, S, E);
  const auto grad = numbers_of(grad_output, B, H, T, E);
  Attention result;
  result.output.resize(grad.size());
  result.logsumexp.resize(static_cast<size_t>(B * H * T));
  result.grad_query.resize(query.size());
  result.grad_key.resize(key.size());
  result.grad_value.resize(value.size());
  result.grad_slopes.resize(static_cast<size_t>(H));
  result.grad_sinks.resize(static_cast<size_t>(H));
  result.grad_bias.resize(static_cast<size_t>(B * H * T * S));

  const auto scale = a.rule.factor(D);
  const auto kept = dropout_scale(a.dropout);
  std::vector<int64_t> seen;
  std::vector<double> weight(static_cast<size_t>(S));
  std::vector<double> slope(static_cast<size_t>(S)); // of the cap
  std::vector<double> factor(static_cast<size_t>(S)); // of dropout
  for (int64_t row = 0; row < B * H * T; ++row) {
    const auto b = row / T / H;
    const auto h = row / T % H;
    const auto head =
        b * std::max(H, a.dropout_num_heads) + a.dropout_first_head + h;
    const auto t = row % T;
    const auto first_key = (b * G + h / (H / G)) * S;
    const auto* q = query.data() + row * D;
    const auto* k = key.data() + first_key * D;
    const auto* v = value.data() + first_key * E;
    const auto* grad_o = grad.data() + row * E;
    auto* o = result.output.data() + row * E;
    auto* grad_q = result.grad_query.data() + row * D;
    auto* grad_k = result.grad_key.data() + first_key * D;
    auto* grad_v = result.grad_value.data() + first_key * E;

    // 1. Scores of the keys that are seen, and their softmax.
    seen.clear();
    double maximum = -kInfinity;
    for (int64_t s = 0; s < S; ++s) {
      if (!sees(a, b, h, t, s)) {
        continue;
      }
      double score = 0;
      for (int64_t d = 0; d < D; ++d) {
        score += q[d] * k[s * D + d];
      }
      score *= scale;
      slope[s] = 1;
      if (a.rule.softcap) {
        const auto y = std::tanh(score / *a.rule.softcap);
        score = *a.rule.softcap * y;
        slope[s] = 1 - y * y;
      }
      score += bias_of(a, b, h, t, s) - alibi_of(a, b, h, t, s);
      // A score of -inf, as infinite keys may have, hides as well.
      if (score == -kInfinity) {
        continue;
      }
      seen.push_back(s);
      // NaN is the maximum of all.
      maximum = std::isnan(score) ? score : std::max(maximum, score);
      weight[s] = score;
    }
    // A sink is the score of one more key, without a value.
    const bool has_sink = a.sinks != nullptr && !seen.empty();
    const auto sink = has_sink ? static_cast<double>(a.sinks[h]) : -kInfinity;
    maximum = std::isnan(maximum) ? maximum : std::max(maximum, sink);
    const auto sink_weight = has_sink ? std::exp(sink - maximum) : 0;
    double sum = sink_weight;
    for (const auto s : seen) {
      weight[s] = std::exp(weight[s] - maximum);
      sum += weight[s];
    }
    result.logsumexp[row] = maximum + std::log(sum);

    // 2. The values' mean.
    for (const auto s : seen) {
      weight[s] /= sum;
      const bool drops =
          a.dropout > 0 && dropped(head, t, s, a.dropout, a.dropout_seed);
      factor[s] = drops ? 0 : kept;
      for (int64_t e = 0; e < E; ++e) {
        // A weight of NaN stays one when it is dropped.
        o[e] += weight[s] * factor[s] * (drops ? 0 : v[s * E + e]);
      }
    }

    // 3. Gradients.
    double mean = 0;
    for (int64_t e = 0; e < E; ++e) {
      mean += o[e] * grad_o[e];
    }
    if (has_sink) {
      result.grad_sinks[h] -= sink_weight / sum * mean;
    }
    for (const auto s : seen) {
      double grad_weight = 0;
      for (int64_t e = 0; e < E && factor[s] != 0; ++e) {
        grad_weight += factor[s] * grad_o[e] * v[s * E + e];
        grad_v[s * E + e] += weight[s] * factor[s] * grad_o[e];
      }
      const auto grad_sum = weight[s] * (grad_weight - mean);
      result.grad_bias[row * S + s] = grad_sum;
      result.grad_slopes[h] -= grad_sum * distance_of(a, b, t, s);
      const auto grad_score = grad_sum * slope[s] * scale;
      for (int64_t d = 0; d < D; ++d) {
        grad_q[d] += grad_score * k[s * D + d];
        grad_k[s * D + d] += grad_score * q[d];
      }
    }
  }
  return result;
}

} // namespace torch_attention::cpu::testing
