#pragma once

#include <cpu/problem.h>

#include <algorithm>
#include <cstdint>
#include <functional>
#include <memory>
#include <random>
#include <string>
#include <vector>

/// Masks as models have them, drawn at random.
namespace torch_attention::cpu::testing {

/// Returns whether query t may not see key s, of T and S.
using Hides = std::function<bool(int64_t t, int64_t s)>;

/// One of the kinds of masks that models have.
inline Hides random_hides(std::mt19937& random, int64_t T, int64_t S) {
  const auto draw = [&](int64_t n) {
    return static_cast<int64_t>(random() % static_cast<uint64_t>(n));
  };
  const auto first = S - T;
  switch (draw(11)) {
    case 0: // causal
      return [=](int64_t t, int64_t s) { return s > first + t; };
    case 1: { // a window to both sides
      const auto before = draw(S + 1);
      const auto after = draw(S + 1);
      return [=](int64_t t, int64_t s) {
        return s < first + t - before || s > first + t + after;
      };
    }
    case 2: { // chunks
      const auto size = 1 + draw(S);
      return [=](int64_t t, int64_t s) {
        return std::max<int64_t>(first + t, 0) / size != s / size;
      };
    }
    case 3: { // a prefix that all see, and causal after it
      const auto prefix = draw(S + 1);
      return [=](int64_t t, int64_t s) { return s >= prefix && s > first + t; };
    }
    case 4: { // documents, each of its own
      auto document = std::make_shared<std::vector<int64_t>>();
      int64_t current = 0;
      for (int64_t i = 0; i < std::max(S, T); ++i) {
        current += draw(40) == 0 ? 1 : 0;
        document->push_back(current);
      }
      return [=](int64_t t, int64_t s) {
        return (*document)[static_cast<size_t>(t)] !=
            (*document)[static_cast<size_t>(s)];
      };
    }
    case 5: { // padding behind
      const auto length = draw(S + 1);
      return [=](int64_t /*t*/, int64_t s) { return s >= length; };
    }
    case 6: { // padding in front
      const auto length = draw(S + 1);
      return [=](int64_t /*t*/, int64_t s) { return s < length; };
    }
    case 7: { // a window, and tokens that see all and that all see
      const auto window = 1 + draw(S);
      const auto global = draw(20);
      return [=](int64_t t, int64_t s) {
        return std::abs(first + t - s) >= window && t >= global && s >= global;
      };
    }
    case 8: { // blocks at random
      const auto rows = 1 + draw(70);
      const auto keys = 1 + draw(140);
      const auto seed = static_cast<unsigned>(random());
      return [=](int64_t t, int64_t s) {
        std::mt19937 block(
            seed + static_cast<unsigned>(t / rows * 1000 + s / keys));
        return block() % 3 != 0;
      };
    }
    case 9: { // single keys at random
      const auto seed = static_cast<unsigned>(random());
      const auto hidden = draw(100);
      return [=](int64_t t, int64_t s) {
        std::mt19937 one(seed + static_cast<unsigned>(t * 4099 + s));
        return one() % 100 < static_cast<unsigned>(hidden);
      };
    }
    default: { // nothing, or all from some row on
      const auto blind = draw(2 * T);
      return [=](int64_t t, int64_t /*s*/) { return t >= blind; };
    }
  }
}

/// The numbers of a mask or bias (B, H, T, S) in memory, broadcast along some
/// dimensions and in any order.
template <typename Y>
struct DrawnScores {
  std::unique_ptr<Y[]> data;
  Scores<const Y> scores;
};

/// Each number is `number_of(b, h, t, s)`, of index 0 in broadcast dimensions.
/// Keys are broadcast only if they may be.
template <typename Y, typename NumberOf>
DrawnScores<Y> draw_scores(
    std::mt19937& random,
    const Case& c,
    const NumberOf& number_of,
    bool may_broadcast_keys = true) {
  const auto one_in = [&](unsigned n) { return random() % n == 0; };
  const auto B = one_in(2) ? c.B : 1;
  const auto H = one_in(2) ? c.H : 1;
  const auto T = one_in(6) ? 1 : c.T;
  const auto S = may_broadcast_keys && one_in(20) ? 1 : c.S;
  DrawnScores<Y> result;
  // Room for gaps of one number.
  const auto n = B * H * (T + 1) * (S + 1);
  result.data.reset(new Y[static_cast<size_t>(n)]());
  const bool transposed = one_in(4);
  const auto query = transposed ? 1 : S + (one_in(2) ? 1 : 0);
  const auto key = transposed ? T : 1;
  const auto head = (T + 1) * (S + 1);
  for (int64_t b = 0; b < B; ++b) {
    for (int64_t h = 0; h < H; ++h) {
      for (int64_t t = 0; t < T; ++t) {
        for (int64_t s = 0; s < S; ++s) {
          result.data[(b * H + h) * head + t * query + s * key] =
              number_of(b, h, t, s);
        }
      }
    }
  }
  result.scores = {
      result.data.get(),
      B > 1 ? H * head : 0,
      H > 1 ? head : 0,
      T > 1 ? query : 0,
      S > 1 ? key : 0};
  return result;
}

} // namespace torch_attention::cpu::testing
