#pragma once

#include <cpu/attention.h>
#include <cpu/attention_by_definition.h>
#include <cpu/numbers.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <functional>
#include <memory>
#include <random>
#include <sstream>
#include <string>
#include <thread>
#include <vector>

namespace torch_attention::cpu::testing {

/// Threads that are started for each call, all at once.
inline Threads threads_of(int64_t count) {
  Threads threads;
  threads.count = count;
  threads.parallel_for = [](int64_t n, const std::function<void(int64_t)>& fn) {
    std::vector<std::thread> pool;
    for (int64_t i = 0; i < n; ++i) {
      pool.emplace_back([&fn, i] { fn(i); });
    }
    for (auto& thread : pool) {
      thread.join();
    }
  };
  return threads;
}

/// The order of a Buffer's elements in memory.
enum class Layout { kHeadsFirst, kTokensFirst, kWithGaps };

/// Elements (B, heads, tokens, features), with `gap` in memory between them.
template <typename X>
class Buffer {
 public:
  Buffer(
      int64_t batch_size,
      int64_t heads,
      int64_t tokens,
      int64_t features,
      Layout layout,
      X gap)
      : batch_size_(batch_size),
        heads_(heads),
        tokens_(tokens),
        features_(features),
        gap_(gap) {
    switch (layout) {
      case Layout::kHeadsFirst:
        strides_ = {heads * tokens * features, tokens * features, features};
        break;
      case Layout::kTokensFirst:
        strides_ = {heads * tokens * features, features, heads * features};
        break;
      case Layout::kWithGaps:
        strides_.head = features + 3;
        strides_.token = heads * strides_.head + 5;
        strides_.batch = tokens * strides_.token;
        break;
    }
    // Ends with the last element, so that a sanitizer reports reads beyond.
    if (batch_size * heads * tokens * features > 0) {
      elements_.assign(
          static_cast<size_t>(
              index(batch_size - 1, heads - 1, tokens - 1, features)),
          gap);
    }
  }

  X& operator()(int64_t b, int64_t h, int64_t n, int64_t i) {
    return elements_[index(b, h, n, i)];
  }

  /// Calls `fn(element)` in the order of the dimensions.
  template <typename Fn>
  void for_each(const Fn& fn) {
    for (int64_t b = 0; b < batch_size_; ++b) {
      for (int64_t h = 0; h < heads_; ++h) {
        for (int64_t n = 0; n < tokens_; ++n) {
          for (int64_t i = 0; i < features_; ++i) {
            fn((*this)(b, h, n, i));
          }
        }
      }
    }
  }

  /// Sets each element to `draw()`.
  template <typename Draw>
  void fill(const Draw& draw) {
    for_each([&](X& x) { x = stored<X>(draw()); });
  }

  Heads<const X> as_input() const {
    return {elements_.data(), strides_};
  }

  Heads<X> as_output() {
    return {elements_.data(), strides_};
  }

  std::vector<double> numbers() const {
    return numbers_of(as_input(), batch_size_, heads_, tokens_, features_);
  }

  /// True if nothing was written between the elements.
  bool gaps_are_untouched() const {
    auto copy = *this;
    copy.for_each([&](X& x) { x = gap_; });
    return std::all_of(
        copy.elements_.begin(), copy.elements_.end(), [&](const X& x) {
          return std::memcmp(&x, &gap_, sizeof x) == 0;
        });
  }

  bool has_same_bits(const Buffer& other) const {
    return elements_.size() == other.elements_.size() &&
        (elements_.empty() ||
         std::memcmp(
             elements_.data(),
             other.elements_.data(),
             elements_.size() * sizeof(X)) == 0);
  }

 private:
  int64_t index(int64_t b, int64_t h, int64_t n, int64_t i) const {
    return b * strides_.batch + h * strides_.head + n * strides_.token + i;
  }

  int64_t batch_size_;
  int64_t heads_;
  int64_t tokens_;
  int64_t features_;
  X gap_;
  Strides strides_;
  std::vector<X> elements_;
};

/// The problem that a test computes, with the letters of cpu/attention.h.
struct Case {
  int64_t B = 1;
  int64_t H = 2;
  int64_t G = 2;
  int64_t T = 16;
  int64_t S = 16;
  int64_t D = 16;
  int64_t E = 16;
  bool causal = false;
  int64_t window = 0;
  int64_t window_after = -1;
  int64_t chunk = 0;
  bool offsets = false;
  bool lengths = false;
  bool bias = false;
  /// The bias has the type that is computed with.
  bool wide = false;
  bool mask = false;
  /// Bias and mask are the same for all queries.
  bool same_for_queries = false;
  /// The keys that no query sees, and their values, are not finite.
  bool hides_nan = false;
  double dropout = 0;
  /// A factor of the scale, times 1 / sqrt(D).
  double scale = 1;
  double softcap = 0;
  bool alibi = false;
  bool sinks = false;
  Layout layout = Layout::kHeadsFirst;
  unsigned seed = 1;

  std::string text() const {
    std::ostringstream text;
    text << "B " << B << ", H " << H << ", G " << G << ", T " << T << ", S "
         << S << ", D " << D << ", E " << E << ", causal " << causal
         << ", window " << window << ", window_after " << window_after
         << ", chunk " << chunk << ", offsets " << offsets << ", lengths "
         << lengths << ", bias " << bias << ", wide " << wide << ", mask "
         << mask << ", same_for_queries " << same_for_queries << ", hides_nan "
         << hides_nan << ", dropout " << dropout << ", scale " << scale
         << ", softcap " << softcap << ", alibi " << alibi << ", sinks "
         << sinks << ", layout " << static_cast<int>(layout) << ", seed "
         << seed;
    return text.str();
  }
};

/// Random inputs for a case, and room for what comes out.
template <typename X>
struct Problem {
  const Case sizes;
  Buffer<X> query;
  Buffer<X> key;
  Buffer<X> value;
  Buffer<X> output;
  Buffer<X> grad_output;
  Buffer<X> grad_query;
  Buffer<X> grad_key;
  Buffer<X> grad_value;
  std::vector<Compute<X>> maximum;
  std::vector<Compute<X>> sum;
  std::vector<X> bias; // (B, 1, T or 1, S)
  std::vector<Compute<X>> wide_bias; // or this
  std::unique_ptr<bool[]> mask; // (1, H, T or 1, S)
  std::vector<int64_t> offsets;
  std::vector<int64_t> lengths;
  std::vector<Compute<X>> slopes;
  std::vector<Compute<X>> grad_slopes;
  std::vector<Compute<X>> sinks;
  std::vector<Compute<X>> grad_sinks;
  std::vector<Compute<X>> grad_bias; // (B, H, T, S)
  AttentionArguments<X> arguments;

  explicit Problem(const Case& c)
      : sizes(c),
        query(c.B, c.H, c.T, c.D, c.layout, stored<X>(kNaN)),
        key(c.B, c.G, c.S, c.D, c.layout, stored<X>(kNaN)),
        value(c.B, c.G, c.S, c.E, c.layout, stored<X>(kNaN)),
        output(c.B, c.H, c.T, c.E, c.layout, stored<X>(77)),
        grad_output(c.B, c.H, c.T, c.E, c.layout, stored<X>(kNaN)),
        grad_query(c.B, c.H, c.T, c.D, c.layout, stored<X>(77)),
        grad_key(c.B, c.G, c.S, c.D, c.layout, stored<X>(77)),
        grad_value(c.B, c.G, c.S, c.E, c.layout, stored<X>(77)),
        maximum(static_cast<size_t>(c.B * c.H * c.T), Compute<X>(77)),
        sum(maximum),
        random_(c.seed) {
    query.fill([&] { return normal_(random_); });
    key.fill([&] { return normal_(random_); });
    value.fill([&] { return normal_(random_); });
    grad_output.fill([&] { return normal_(random_); });
    auto& a = arguments;
    a.batch_size = c.B;
    a.num_heads = c.H;
    a.num_kv_heads = c.G;
    a.num_queries = c.T;
    a.num_keys = c.S;
    a.head_dim = c.D;
    a.value_dim = c.E;
    a.query = query.as_input();
    a.key = key.as_input();
    a.value = value.as_input();
    a.rule.scale = c.scale / std::sqrt(static_cast<double>(c.D));
    a.rule.causal = c.causal;
    if (c.softcap > 0) {
      a.rule.softcap = c.softcap;
    }
    if (c.window > 0) {
      a.rule.window = c.window;
    }
    if (c.window_after >= 0) {
      a.rule.window_after = c.window_after;
    }
    if (c.chunk > 0) {
      a.rule.chunk = c.chunk;
    }
    a.dropout = c.dropout;
    a.dropout_seed = 0x123456789ABCDEFULL + c.seed;
    draw_offsets();
    draw_lengths();
    draw_bias();
    draw_mask();
    if (c.alibi) {
      slopes.resize(static_cast<size_t>(c.H));
      for (auto& slope : slopes) {
        slope = static_cast<Compute<X>>(std::abs(normal_(random_)) / 8);
      }
      grad_slopes.assign(slopes.size(), Compute<X>(77));
      a.alibi_slopes = slopes.data();
    }
    if (c.sinks) {
      sinks.resize(static_cast<size_t>(c.H));
      for (auto& sink : sinks) {
        sink = static_cast<Compute<X>>(2 * normal_(random_));
      }
      grad_sinks.assign(sinks.size(), Compute<X>(77));
      a.sinks = sinks.data();
    }
    if (c.hides_nan) {
      spoil_unseen_keys();
    }
  }

  // `arguments` points to the other members.
  Problem(const Problem&) = delete;
  Problem& operator=(const Problem&) = delete;

  /// log(sum over keys of exp(score)) of each query.
  std::vector<double> logsumexp() const {
    std::vector<double> result;
    for (size_t i = 0; i < sum.size(); ++i) {
      result.push_back(
          static_cast<double>(maximum[i]) +
          std::log(static_cast<double>(sum[i])));
    }
    return result;
  }

  void compute_output(const Threads& threads = threads_of(1)) {
    forward(
        arguments, output.as_output(), {maximum.data(), sum.data()}, threads);
  }

  void compute(const Threads& threads = threads_of(1)) {
    compute_output(threads);
    BackwardArguments<X> gradients;
    gradients.output = output.as_input();
    gradients.statistics = {maximum.data(), sum.data()};
    gradients.grad_output = grad_output.as_input();
    gradients.grad_query = grad_query.as_output();
    gradients.grad_key = grad_key.as_output();
    gradients.grad_value = grad_value.as_output();
    gradients.grad_alibi_slopes =
        grad_slopes.empty() ? nullptr : grad_slopes.data();
    gradients.grad_sinks = grad_sinks.empty() ? nullptr : grad_sinks.data();
    if (sizes.bias) {
      const auto n = sizes.B * sizes.H * sizes.T * sizes.S;
      grad_bias.assign(static_cast<size_t>(n), Compute<X>(0));
      const auto row = sizes.S;
      gradients.grad_bias = {
          grad_bias.data(), sizes.H * sizes.T * row, sizes.T * row, row, 1};
    }
    backward(arguments, gradients, threads);
  }

 private:
  /// One of 0 to n - 1.
  int64_t draw(int64_t n) {
    return static_cast<int64_t>(random_() % static_cast<uint64_t>(n));
  }

  /// Draws positions before the first key and beyond the last.
  void draw_offsets() {
    if (!sizes.offsets) {
      return;
    }
    for (int64_t b = 0; b < sizes.B; ++b) {
      offsets.push_back(draw(sizes.S + 1) - (b % 2 == 1 ? 3 : 0));
    }
    arguments.query_offsets = offsets.data();
  }

  void draw_lengths() {
    if (!sizes.lengths) {
      return;
    }
    for (int64_t b = 0; b < sizes.B; ++b) {
      lengths.push_back(b == 0 ? draw(sizes.S + 1) : sizes.S);
    }
    arguments.key_lengths = lengths.data();
  }

  void draw_bias() {
    if (!sizes.bias) {
      return;
    }
    const auto rows = sizes.same_for_queries ? 1 : sizes.T;
    const auto query_stride = sizes.same_for_queries ? 0 : sizes.S;
    const auto draw_numbers = [&](auto& numbers, auto& argument) {
      using Y = typename std::decay_t<decltype(numbers)>::value_type;
      for (int64_t i = 0; i < sizes.B * rows * sizes.S; ++i) {
        numbers.push_back(
            stored<Y>(draw(10) == 0 ? -kInfinity : normal_(random_)));
      }
      argument = {numbers.data(), rows * sizes.S, 0, query_stride, 1};
    };
    if (sizes.wide) {
      draw_numbers(wide_bias, arguments.wide_bias);
    } else {
      draw_numbers(bias, arguments.bias);
    }
  }

  void draw_mask() {
    if (!sizes.mask) {
      return;
    }
    const auto rows = sizes.same_for_queries ? 1 : sizes.T;
    const auto n = sizes.H * rows * sizes.S;
    mask.reset(new bool[static_cast<size_t>(n)]);
    for (int64_t i = 0; i < n; ++i) {
      mask[i] = draw(3) == 0;
    }
    // Some queries of the first head see nothing.
    const auto blind = std::min<int64_t>(rows / 2, 40);
    std::fill(mask.get(), mask.get() + blind * sizes.S, true);
    const auto query_stride = sizes.same_for_queries ? 0 : sizes.S;
    arguments.mask = {mask.get(), 0, rows * sizes.S, query_stride, 1};
  }

  bool is_seen(int64_t b, int64_t g, int64_t s) const {
    const auto group = sizes.H / sizes.G;
    for (auto h = g * group; h < (g + 1) * group; ++h) {
      for (int64_t t = 0; t < sizes.T; ++t) {
        if (sees(arguments, b, h, t, s)) {
          return true;
        }
      }
    }
    return false;
  }

  void spoil_unseen_keys() {
    for (int64_t b = 0; b < sizes.B; ++b) {
      for (int64_t g = 0; g < sizes.G; ++g) {
        for (int64_t s = 0; s < sizes.S; ++s) {
          if (is_seen(b, g, s)) {
            continue;
          }
          for (int64_t d = 0; d < sizes.D; ++d) {
            key(b, g, s, d) = stored<X>(s % 2 == 1 ? kNaN : kInfinity);
          }
          for (int64_t e = 0; e < sizes.E; ++e) {
            value(b, g, s, e) = stored<X>(s % 2 == 1 ? kNaN : -kInfinity);
          }
        }
      }
    }
  }

  std::mt19937 random_;
  std::normal_distribution<double> normal_;
};

} // namespace torch_attention::cpu::testing
