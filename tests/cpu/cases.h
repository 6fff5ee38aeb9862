#pragma once

#include <cpu/problem.h>

#include <cstdint>
#include <initializer_list>
#include <random>
#include <vector>

namespace torch_attention::cpu::testing {

/// T queries and S keys of D numbers, and values of as many.
inline Case case_of(int64_t T, int64_t S, int64_t D = 16) {
  Case c;
  c.T = T;
  c.S = S;
  c.D = D;
  c.E = D;
  return c;
}

/// A case of each way through `forward`: one query, rows, tiles, and a tile
/// with remainder rows, of heads that read the same keys; in one part, and with
/// split keys.
inline std::vector<Case> each_way() {
  std::vector<Case> result;
  for (const int64_t T : {1, 3, 40}) {
    for (const int64_t S : {60, 1100}) {
      result.push_back(case_of(T, S, 8));
    }
  }
  for (const int64_t S : {60, 1100}) {
    auto c = case_of(3, S, 8);
    c.H = 12;
    c.G = 2;
    result.push_back(c);
  }
  return result;
}

/// The sizes of random cases.
struct Sizes {
  std::initializer_list<int64_t> B;
  std::initializer_list<int64_t> groups;
  std::initializer_list<int64_t> T;
  std::initializer_list<int64_t> S;
  std::initializer_list<int64_t> D;
};

/// Sizes, and everything that hides keys or changes scores, drawn at random.
inline Case random_case(std::mt19937& random, const Sizes& sizes) {
  const auto pick = [&](std::initializer_list<int64_t> from) {
    return from.begin()[random() % from.size()];
  };
  const auto one_in = [&](unsigned n) { return random() % n == 0; };
  Case c;
  c.seed = static_cast<unsigned>(random());
  c.B = pick(sizes.B);
  c.G = pick({1, 2});
  c.H = c.G * pick(sizes.groups);
  c.T = pick(sizes.T);
  c.S = one_in(2) ? c.T : pick(sizes.S);
  c.D = pick(sizes.D);
  c.E = one_in(2) ? c.D : pick(sizes.D);
  c.causal = one_in(2);
  c.window = one_in(3) ? pick({1, 2, 5, 16, 40, 70}) : 0;
  c.window_after = !c.causal && one_in(3) ? pick({0, 1, 5, 16, 40, 70}) : -1;
  c.chunk = one_in(4) ? pick({1, 2, 5, 16, 40, 64, 100}) : 0;
  c.offsets = one_in(4);
  c.lengths = one_in(3);
  c.bias = one_in(4);
  c.wide = one_in(2);
  c.mask = one_in(4);
  c.same_for_queries = one_in(2);
  c.dropout = one_in(3) ? 0.3 : 0;
  c.softcap = one_in(4) ? 1.5 : 0;
  c.alibi = one_in(4);
  c.sinks = one_in(4);
  c.layout = static_cast<Layout>(random() % 3);
  return c;
}

} // namespace torch_attention::cpu::testing
