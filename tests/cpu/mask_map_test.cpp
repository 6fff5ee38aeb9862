#include <cpu/cases.h>
#include <cpu/masks.h>
#include <cpu/test.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <optional>
#include <random>
#include <type_traits>
#include <vector>

#if __has_include(<sys/mman.h>)
#include <sys/mman.h>
#include <unistd.h>
#endif

namespace mask_map_test {

using namespace torch_attention::cpu;
using namespace torch_attention::cpu::testing;

namespace {

/// All results of a computed problem.
template <typename X>
std::vector<std::vector<double>> results_of(const Problem<X>& computed) {
  const auto numbers = [](const auto& x) {
    return std::vector<double>(x.begin(), x.end());
  };
  return {
      computed.output.numbers(),
      numbers(computed.maximum),
      numbers(computed.sum),
      computed.grad_query.numbers(),
      computed.grad_key.numbers(),
      computed.grad_value.numbers(),
      numbers(computed.grad_slopes),
      numbers(computed.grad_bias),
      numbers(computed.grad_sinks)};
}

/// Returns whether results are equal. By AMX, a tile that the map knows to be
/// unchanged is scaled in another step: there up to rounding.
template <typename X>
bool are_equal(
    const std::vector<std::vector<double>>& x,
    const std::vector<std::vector<double>>& y) {
  const bool rounds = std::is_same_v<X, BFloat16> &&
      instruction_set() == InstructionSet::kAmxBf16;
  const auto same = [rounds](double a, double b) {
    return a == b || (std::isnan(a) && std::isnan(b)) ||
        (rounds &&
         std::abs(a - b) <= 0.02 * (1 + std::max(std::abs(a), std::abs(b))));
  };
  return std::equal(
      x.begin(),
      x.end(),
      y.begin(),
      y.end(),
      [&](const auto& a, const auto& b) {
        return std::equal(a.begin(), a.end(), b.begin(), b.end(), same);
      });
}

template <typename X>
std::vector<std::vector<double>> results_of(
    Problem<X>& problem,
    bool maps_mask) {
  problem.arguments.maps_mask = maps_mask;
  problem.compute(threads_of(3));
  return results_of(problem);
}

/// Draws sizes beyond a block of keys, and rules that change scores.
Case random_sizes(std::mt19937& random) {
  auto c = random_case(
      random,
      {{1, 2},
       {1, 2, 3},
       {1, 2, 3, 4, 5, 17, 33, 65, 100, 190},
       {65, 70, 128, 130, 200, 333, 1100},
       {3, 8, 16, 20}});
  c.bias = false;
  c.mask = false;
  return c;
}

/// Removes everything that changes scores but the mask.
Case without_others(Case c) {
  c.causal = false;
  c.window = 0;
  c.window_after = -1;
  c.chunk = 0;
  c.lengths = false;
  c.alibi = false;
  return c;
}

/// Returns if a key is hidden: each head and batch has one of two masks.
struct DrawnMask {
  Hides first;
  Hides second;

  DrawnMask(std::mt19937& random, const Case& c)
      : first(random_hides(random, c.T, c.S)),
        second(random_hides(random, c.T, c.S)) {}

  bool operator()(int64_t b, int64_t h, int64_t t, int64_t s) const {
    return (b + h) % 2 == 0 ? first(t, s) : second(t, s);
  }
};

/// Gives the problem a bias of 0 and `hidden`, as X or as the type that is
/// computed with, and returns its memory.
template <typename X, typename Y, typename NumberOf>
DrawnScores<Y> set_bias(
    std::mt19937& random,
    Problem<X>& problem,
    Scores<const Y>& bias,
    const NumberOf& number_of) {
  auto drawn = draw_scores<Y>(
      random,
      problem.sizes,
      [&](int64_t b, int64_t h, int64_t t, int64_t s) {
        return stored<Y>(number_of(b, h, t, s));
      },
      /*may_broadcast_keys=*/false);
  bias = drawn.scores;
  return drawn;
}

/// Calls `check` with a bias of X, and with one of the type that is computed
/// with.
template <typename X, typename NumberOf, typename Check>
void with_bias(
    std::mt19937& random,
    Problem<X>& problem,
    const NumberOf& number_of,
    const Check& check) {
  auto& a = problem.arguments;
  if (random() % 2 == 0) {
    const auto drawn = set_bias(random, problem, a.bias, number_of);
    check(drawn);
    a.bias = {};
  } else {
    const auto drawn = set_bias(random, problem, a.wide_bias, number_of);
    check(drawn);
    a.wide_bias = {};
  }
}

} // namespace

TEMPLATE_TEST_CASE(
    "A mask gives the same numbers with its map as tile by tile",
    "",
    float,
    double,
    BFloat16,
    Float16) {
  each_instruction_set<TestType>();
  std::mt19937 random(31 + sizeof(TestType));
  for (int i = 0; i < random_cases(60); ++i) {
    const auto c = random_sizes(random);
    Problem<TestType> problem(c);
    const DrawnMask hides(random, c);
    const auto mask = draw_scores<bool>(random, c, hides);
    problem.arguments.mask = mask.scores;
    INFO(description<TestType>(c));
    const auto expected = results_of(problem, false);
    CHECK(are_equal<TestType>(results_of(problem, true), expected));
    check_by_definition(problem);
  }
}

TEMPLATE_TEST_CASE(
    "A bias of -inf and others gives the same numbers with its map",
    "",
    float,
    double,
    BFloat16,
    Float16) {
  each_instruction_set<TestType>();
  std::mt19937 random(37 + sizeof(TestType));
  for (int i = 0; i < random_cases(60); ++i) {
    const auto c = random_sizes(random);
    Problem<TestType> problem(c);
    const DrawnMask hides(random, c);
    // The other numbers are 0, or some of them, or none.
    const auto others = random() % 3;
    const auto number_of = [&](int64_t b, int64_t h, int64_t t, int64_t s) {
      const auto other = others == 0 || (others == 1 && s / 40 % 2 == 0)
          ? 0.0
          : static_cast<double>((t + s + h) % 7) / 8;
      return hides(b, h, t, s) ? -kInfinity : other;
    };
    INFO(description<TestType>(c) << ", others " << others);
    with_bias(random, problem, number_of, [&](const auto& /*memory*/) {
      const auto expected = results_of(problem, false);
      CHECK(are_equal<TestType>(results_of(problem, true), expected));
      check_by_definition(problem);
    });
  }
}

TEMPLATE_TEST_CASE(
    "Mask and bias together give the same numbers with their map",
    "",
    float,
    BFloat16) {
  each_instruction_set<TestType>();
  std::mt19937 random(41 + sizeof(TestType));
  for (int i = 0; i < random_cases(40); ++i) {
    const auto c = random_sizes(random);
    Problem<TestType> problem(c);
    const DrawnMask hides(random, c);
    const DrawnMask bias_hides(random, c);
    const auto mask = draw_scores<bool>(random, c, hides);
    problem.arguments.mask = mask.scores;
    const bool real = random() % 2 == 0;
    const auto number_of = [&](int64_t b, int64_t h, int64_t t, int64_t s) {
      return bias_hides(b, h, t, s) ? (random() % 2 == 0 ? -kInfinity : -512)
          : real                    ? static_cast<double>(s % 5)
                                    : 0.0;
    };
    INFO(description<TestType>(c));
    with_bias(random, problem, number_of, [&](const auto& /*memory*/) {
      const auto expected = results_of(problem, false);
      CHECK(are_equal<TestType>(results_of(problem, true), expected));
      // Where all keys have -512, their sums are rounded.
      check_by_definition(problem, 1e-3);
    });
  }
}

TEMPLATE_TEST_CASE(
    "Low finite numbers of a bias hide as -inf does, where a row has others",
    "",
    float,
    double,
    BFloat16,
    Float16) {
  each_instruction_set<TestType>();
  std::mt19937 random(43 + sizeof(TestType));
  for (int i = 0; i < random_cases(60); ++i) {
    const auto c = without_others(random_sizes(random));
    if (c.S <= 64) {
      // Not read into a map: weights are then about 1e-30 and not 0.
      continue;
    }
    Problem<TestType> problem(c);
    const DrawnMask hides(random, c);
    const auto least = number(lowest<TestType>());
    const double fills[] = {-1e9, least, -2e4, least / 2};
    const auto fill = std::max(least, fills[random() % 4]);
    double hidden = -kInfinity;
    // Each row sees a key at least.
    const auto number_of = [&](int64_t b, int64_t h, int64_t t, int64_t s) {
      return s != t % c.S && hides(b, h, t, s) ? hidden : 0.0;
    };
    const auto seed = random();
    INFO(description<TestType>(c) << ", fill " << fill);
    std::vector<std::vector<double>> expected;
    std::mt19937 again(static_cast<unsigned>(seed));
    with_bias(again, problem, number_of, [&](const auto& /*memory*/) {
      expected = results_of(problem, true);
    });
    hidden = fill;
    again.seed(static_cast<unsigned>(seed));
    with_bias(again, problem, number_of, [&](const auto& /*memory*/) {
      CHECK(are_equal<TestType>(results_of(problem, true), expected));
      check_by_definition(problem);
    });
  }
}

TEMPLATE_TEST_CASE(
    "Finite numbers of a bias do not hide what they may not",
    "",
    float,
    double,
    BFloat16) {
  each_instruction_set<TestType>();
  std::mt19937 random(47 + sizeof(TestType));
  for (int i = 0; i < random_cases(60); ++i) {
    auto c = random_sizes(random);
    // Makes scores as large as the numbers that hide.
    const auto reason = i % 4;
    if (reason < 3) {
      c = without_others(c);
    }
    c.alibi = c.alibi || reason == 3;
    c.softcap = 0;
    c.dropout = 0;
    c.sinks = c.sinks && reason != 2;
    Problem<TestType> problem(c);
    if (reason == 0) {
      problem.query.for_each([](TestType& x) {
        x = stored<TestType>(1000 * std::abs(number(x)));
      });
      problem.key.for_each([](TestType& x) {
        x = stored<TestType>(1000 * std::abs(number(x)));
      });
    }
    const DrawnMask hides(random, c);
    const double fill = reason == 0 ? -1e5 : reason == 1 ? -20 : -1024;
    const auto number_of = [&](int64_t b, int64_t h, int64_t t, int64_t s) {
      // Rows that see nothing give the mean of the values.
      const bool blind = reason == 2 || (reason == 3 && t % 3 == 0);
      return blind || hides(b, h, t, s) ? fill : 0.0;
    };
    INFO(description<TestType>(c) << ", reason " << reason);
    with_bias(random, problem, number_of, [&](const auto& /*memory*/) {
      const auto expected = results_of(problem, false);
      CHECK(are_equal<TestType>(results_of(problem, true), expected));
      if (reason != 0) {
        check_by_definition(problem, reason == 1 ? 0.0 : 1e-3);
      }
    });
  }
}

TEMPLATE_TEST_CASE(
    "What is not finite makes low numbers a bias again",
    "",
    float,
    double) {
  each_instruction_set<TestType>();
  std::mt19937 random(53);
  for (int i = 0; i < random_cases(24); ++i) {
    auto c = case_of(i % 2 == 0 ? 100 : 3, 200);
    c.E = 8;
    Problem<TestType> problem(c);
    const auto causal =
        [&](int64_t /*b*/, int64_t /*h*/, int64_t t, int64_t s) {
          return s > c.S - c.T + t ? -1e9 : 0.0;
        };
    const double bad = i % 3 == 0 ? kNaN : kInfinity;
    // The last key, which one query alone sees.
    if (i % 4 < 2) {
      problem.value(0, 0, c.S - 1, 0) = stored<TestType>(bad);
    } else {
      problem.key(0, 0, c.S - 1, 0) = stored<TestType>(kNaN);
    }
    INFO(description<TestType>(c));
    with_bias(random, problem, causal, [&](const auto& /*memory*/) {
      const auto expected = results_of(problem, false);
      CHECK(are_equal<TestType>(results_of(problem, true), expected));
      // In Python, too, 0 times NaN is NaN.
      CHECK(
          std::isnan(number(problem.output(0, 0, c.T - 2, 0))) ==
          (i % 3 == 0 || i % 4 >= 2));
    });
  }
}

TEMPLATE_TEST_CASE(
    "Gradients of a bias with its map are those without",
    "",
    float,
    BFloat16) {
  each_instruction_set<TestType>();
  std::mt19937 random(59);
  for (int i = 0; i < random_cases(20); ++i) {
    auto c = random_sizes(random);
    c.bias = true;
    c.wide = true;
    c.same_for_queries = false;
    Problem<TestType> problem(c);
    const auto hides = random_hides(random, c.T, c.S);
    for (int64_t j = 0; j < c.B * c.T * c.S; ++j) {
      auto& x = problem.wide_bias[static_cast<size_t>(j)];
      if (hides(j / c.S % c.T, j % c.S)) {
        x = -std::numeric_limits<float>::infinity();
      } else if (i % 2 == 0 || std::isnan(x)) {
        x = 0;
      }
    }
    INFO(description<TestType>(c));
    const auto expected = results_of(problem, false);
    CHECK(are_equal<TestType>(results_of(problem, true), expected));
    check_by_definition(problem);
  }
}

TEMPLATE_TEST_CASE(
    "Packed sequences give the same numbers with their maps",
    "",
    float,
    BFloat16) {
  each_instruction_set<TestType>();
  std::mt19937 random(61);
  for (int i = 0; i < random_cases(10); ++i) {
    auto c = case_of(300, 420, 8);
    c.H = 4;
    c.G = 2;
    c.dropout = i % 2 == 0 ? 0.2 : 0;
    Problem<TestType> problem(c);
    auto& a = problem.arguments;
    const std::vector<int64_t> queries{0, 100, 100, 130, 300};
    const std::vector<int64_t> keys{0, 120, 125, 325, 420};
    a.num_sequences = 4;
    a.query_starts = queries.data();
    a.key_starts = keys.data();
    // The mask is that of a padded batch.
    auto padded = c;
    padded.B = 4;
    padded.T = 170;
    padded.S = 200;
    const DrawnMask hides(random, padded);
    INFO(description<TestType>(c));
    if (i % 3 == 0) {
      const auto bias = draw_scores<float>(
          random, padded, [&](int64_t b, int64_t h, int64_t t, int64_t s) {
            return hides(b, h, t, s) ? -std::numeric_limits<float>::infinity()
                                     : 0.0F;
          });
      a.wide_bias = bias.scores;
      const auto expected = results_of(problem, false);
      CHECK(are_equal<TestType>(results_of(problem, true), expected));
      continue;
    }
    const auto mask = draw_scores<bool>(random, padded, hides);
    problem.arguments.mask = mask.scores;
    const auto expected = results_of(problem, false);
    CHECK(are_equal<TestType>(results_of(problem, true), expected));
  }
}

#if __has_include(<sys/mman.h>)

namespace {

/// Memory whose pages cannot be read where `hides` holds.
class GuardedKeys {
 public:
  GuardedKeys(int64_t keys, int64_t per_page)
      : page_(static_cast<size_t>(sysconf(_SC_PAGESIZE))),
        pages_(static_cast<size_t>(keys / per_page)) {
    memory_ = mmap(
        nullptr,
        page_ * pages_,
        PROT_READ | PROT_WRITE,
        MAP_PRIVATE | MAP_ANONYMOUS,
        -1,
        0);
    REQUIRE(memory_ != MAP_FAILED);
  }
  GuardedKeys(const GuardedKeys&) = delete;
  GuardedKeys& operator=(const GuardedKeys&) = delete;
  ~GuardedKeys() {
    munmap(memory_, page_ * pages_);
  }

  template <typename Hides>
  void guard(const Hides& hides) {
    for (size_t i = 0; i < pages_; ++i) {
      if (hides(static_cast<int64_t>(i))) {
        REQUIRE(
            mprotect(
                static_cast<char*>(memory_) + i * page_, page_, PROT_NONE) ==
            0);
      }
    }
  }

  float* data() const {
    return static_cast<float*>(memory_);
  }

 private:
  size_t page_;
  size_t pages_;
  void* memory_;
};

} // namespace

TEST_CASE("Keys that no query of a task sees are not read") {
  each_instruction_set<float>();
  constexpr int64_t kPageKeys = 128; // no less than any block
  const auto D =
      sysconf(_SC_PAGESIZE) / kPageKeys / static_cast<int64_t>(sizeof(float));
  constexpr int64_t kPages = 9;
  constexpr auto S = kPages * kPageKeys;
  const auto is_hidden = [](int64_t page) { return page % 3 != 1; };
  const bool by_bias = GENERATE(false, true);
  const bool per_row = GENERATE(false, true);
  for (const int64_t T : {1, 5, 24, 100}) {
    auto c = case_of(T, S, D);
    c.H = 1;
    c.G = 1;
    Problem<float> problem(c);
    GuardedKeys keys(S, kPageKeys);
    GuardedKeys values(S, kPageKeys);
    for (int64_t s = 0; s < S; ++s) {
      for (int64_t d = 0; d < D; ++d) {
        keys.data()[s * D + d] = problem.key(0, 0, s, d);
        values.data()[s * D + d] = problem.value(0, 0, s, d);
      }
    }
    const auto rows = per_row ? T : 1;
    const std::unique_ptr<bool[]> mask(new bool[static_cast<size_t>(rows * S)]);
    std::vector<float> bias(static_cast<size_t>(rows * S));
    for (int64_t i = 0; i < rows * S; ++i) {
      mask[i] = is_hidden(i % S / kPageKeys) || i % 7 == 0;
      bias[i] = mask[i] ? -std::numeric_limits<float>::infinity() : 0.0F;
    }
    auto& a = problem.arguments;
    if (by_bias) {
      a.bias = {bias.data(), 0, 0, per_row ? S : 0, 1};
    } else {
      a.mask = {mask.get(), 0, 0, per_row ? S : 0, 1};
    }
    problem.compute();
    const auto expected = results_of(problem);
    keys.guard(is_hidden);
    values.guard(is_hidden);
    a.key.data = keys.data();
    a.value.data = values.data();
    INFO(description<float>(c));
    problem.compute();
    CHECK(are_equal<float>(results_of(problem), expected));
  }
}

#endif

} // namespace mask_map_test
