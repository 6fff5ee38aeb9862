#include <cpu/cases.h>
#include <cpu/int8_rows.h>
#include <cpu/test.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <random>
#include <vector>

namespace int8_test {

using namespace torch_attention::cpu;
using namespace torch_attention::cpu::testing;

/// Returns the scale of a row of `size` numbers.
float scale_of(const int8_t* row, int64_t size) {
  float scale = 0;
  std::memcpy(&scale, row + size, sizeof(scale));
  return scale;
}

template <typename X>
Int8RowsArguments<X> sizes_of_rows(const Case& c, int64_t size) {
  return {c.B, c.G, c.S, size};
}

/// Rows (B, G, S, size) in the layout of a case.
Buffer<int8_t> rows_for(const Case& c, int64_t size) {
  return {c.B, c.G, c.S, size + kScaleBytes, c.layout, 77};
}

Buffer<int8_t> quantized(Buffer<float>& x, const Case& c, int64_t size) {
  auto rows = rows_for(c, size);
  quantize_rows(
      sizes_of_rows<float>(c, size),
      x.as_input(),
      rows.as_output(),
      threads_of(1));
  return rows;
}

/// A problem whose keys and values are rows of int8. Its float keys and values
/// are what the rows hold.
struct Int8Problem {
  Problem<float> problem;
  Buffer<int8_t> keys;
  Buffer<int8_t> values;

  explicit Int8Problem(const Case& c, bool values_in_keys = false)
      : problem(c),
        keys(quantized(problem.key, c, c.D)),
        values(quantized(problem.value, c, c.E)) {
    read(keys, c.D, problem.key);
    if (values_in_keys) {
      problem.value.for_each([](float& x) { x = 0; });
      for_rows([&](int64_t b, int64_t g, int64_t s) {
        for (int64_t e = 0; e < c.E; ++e) {
          problem.value(b, g, s, e) = problem.key(b, g, s, e);
        }
      });
    } else {
      read(values, c.E, problem.value);
    }
    auto& a = problem.arguments;
    a.int8_key = {keys.as_input(), c.D};
    a.int8_value =
        values_in_keys ? a.int8_key : Int8Rows{values.as_input(), c.E};
  }

  template <typename Fn>
  void for_rows(const Fn& fn) const {
    const auto& c = problem.sizes;
    for (int64_t b = 0; b < c.B; ++b) {
      for (int64_t g = 0; g < c.G; ++g) {
        for (int64_t s = 0; s < c.S; ++s) {
          fn(b, g, s);
        }
      }
    }
  }

  void read(Buffer<int8_t>& rows, int64_t size, Buffer<float>& to) const {
    for_rows([&](int64_t b, int64_t g, int64_t s) {
      const auto scale = scale_of(&rows(b, g, s, 0), size);
      for (int64_t i = 0; i < size; ++i) {
        to(b, g, s, i) = static_cast<float>(rows(b, g, s, i)) * scale;
      }
    });
  }

  std::vector<double> expected() {
    auto a = problem.arguments;
    a.int8_key = {};
    a.int8_value = {};
    return attention_by_definition(a, problem.grad_output.as_input()).output;
  }

  /// Returns how far the output may be from the definition: queries have a step
  /// of their largest number / 32767, and so scores an error of half of it for
  /// each number of a key; the weights of 64 keys a step of the largest /
  /// 32767.
  double allowed() {
    constexpr double kRounding = 2e-5;
    double query = 0;
    double key = 0;
    double value = 0;
    problem.query.for_each(
        [&](float x) { query = std::max(query, std::abs(double{x})); });
    problem.value.for_each([&](float x) {
      value = std::isfinite(x) ? std::max(value, std::abs(double{x})) : value;
    });
    const auto& c = problem.sizes;
    for_rows([&](int64_t b, int64_t g, int64_t s) {
      double sum = 0;
      for (int64_t d = 0; d < c.D; ++d) {
        sum += std::abs(double{problem.key(b, g, s, d)});
      }
      key = std::isfinite(sum) ? std::max(key, sum) : key;
    });
    if (!has_pairs(instruction_set())) {
      return kRounding * (1 + value);
    }
    constexpr double kSteps = 2 * 32767;
    const auto score =
        problem.arguments.rule.scale.value() * key * query / kSteps;
    return (std::expm1(2 * score) + 64 / kSteps + kRounding) * value;
  }
};

/// Returns the largest difference; NaN only where both are.
double difference(
    const std::vector<double>& x,
    const std::vector<double>& expected) {
  double most = 0;
  for (size_t i = 0; i < x.size(); ++i) {
    if (std::isnan(x[i]) && std::isnan(expected[i])) {
      continue;
    }
    const auto apart = std::abs(x[i] - expected[i]);
    most = std::isnan(apart) ? kInfinity : std::max(most, apart);
  }
  return most;
}

void check(const Case& c, bool values_in_keys = false) {
  INFO(description<float>(c) << ", values in keys " << values_in_keys);
  Int8Problem rows(c, values_in_keys);
  const auto expected = rows.expected();
  rows.problem.compute_output();
  CHECK(difference(rows.problem.output.numbers(), expected) <= rows.allowed());
  CHECK(rows.problem.output.gaps_are_untouched());
}

TEMPLATE_TEST_CASE(
    "Rows become int8 as they do by plain arithmetic",
    "",
    float,
    BFloat16,
    Float16) {
  each_instruction_set<TestType>();
  std::mt19937 random(3);
  std::normal_distribution<double> normal;
  for (const int64_t D : {1, 3, 15, 16, 17, 64, 100}) {
    Case c;
    c.B = 2;
    c.S = 40;
    c.D = D;
    c.layout = static_cast<Layout>(D % 3);
    INFO(description<TestType>(c));
    Buffer<TestType> x(c.B, c.G, c.S, D, c.layout, stored<TestType>(kNaN));
    // Among them are rows of zeros, of the least numbers, and of numbers in the
    // middle between two.
    x.fill([&] { return normal(random); });
    for (int64_t i = 0; i < D; ++i) {
      x(0, 0, 1, i) = stored<TestType>(0);
      x(0, 0, 2, i) = stored<TestType>(normal(random) * 1e-40);
      x(0, 0, 3, i) =
          stored<TestType>(i == 0 ? 127 : static_cast<double>(i) - 20.5);
    }
    x(0, 0, 4, D / 2) = stored<TestType>(kNaN);
    x(0, 0, 5, D - 1) = stored<TestType>(-kInfinity);
    auto rows = rows_for(c, D);
    quantize_rows(
        sizes_of_rows<TestType>(c, D),
        x.as_input(),
        rows.as_output(),
        threads_of(2));
    CHECK(rows.gaps_are_untouched());
    Buffer<TestType> back(c.B, c.G, c.S, D, c.layout, stored<TestType>(77));
    dequantize_rows(
        sizes_of_rows<TestType>(c, D),
        {rows.as_input(), D},
        back.as_output(),
        threads_of(2));
    for (int64_t b = 0; b < c.B; ++b) {
      for (int64_t g = 0; g < c.G; ++g) {
        for (int64_t s = 0; s < c.S; ++s) {
          float most = 0;
          bool finite = true;
          for (int64_t i = 0; i < D; ++i) {
            const auto in = static_cast<float>(number(x(b, g, s, i)));
            finite = finite && std::isfinite(in);
            most = std::max(most, std::abs(in));
          }
          const auto scale = scale_of(&rows(b, g, s, 0), D);
          REQUIRE(std::isnan(scale) == !finite);
          if (finite) {
            REQUIRE(scale == most / 127);
          }
          for (int64_t i = 0; i < D; ++i) {
            const auto in = static_cast<float>(number(x(b, g, s, i)));
            const auto expected = finite && scale > 0
                ? std::clamp(std::nearbyint(in / scale), -127.0F, 127.0F)
                : 0;
            REQUIRE(static_cast<float>(rows(b, g, s, i)) == expected);
            const auto product = expected * scale;
            const auto found = number(back(b, g, s, i));
            REQUIRE(std::isnan(found) == std::isnan(product));
            if (finite) {
              // Half precision rounds once more.
              const auto rounding = std::abs(double{product}) *
                      (sizeof(TestType) == 4 ? 0 : 0x1p-8) +
                  (sizeof(TestType) == 4 ? 0 : 0x1p-24);
              REQUIRE(std::abs(found - double{product}) <= rounding);
            }
          }
        }
      }
    }
  }
}

TEST_CASE("Attention to rows of int8 is that to their numbers") {
  each_instruction_set<BFloat16>();
  for (const int64_t T : {1, 2, 3, 5, 40}) {
    for (const int64_t S : sizes_of({1, 3, 17, 64, 65, 600, 1100})) {
      for (const int64_t D : {8, 64, 80, 128}) {
        auto c = case_of(T, S, D);
        c.layout = static_cast<Layout>(S % 3);
        check(c);
        c.H = 8;
        c.G = 2;
        c.causal = true;
        check(c);
      }
    }
  }
}

TEST_CASE("Random attention to rows of int8 is that to their numbers") {
  each_instruction_set<BFloat16>();
  std::mt19937 random(5);
  const Sizes sizes{
      {1, 3},
      {1, 2, 5},
      {1, 2, 7, 16, 33},
      {1, 40, 64, 65, 200, 520, 1100},
      {1, 8, 16, 20, 33, 64, 96, 200}};
  const auto cases = random_cases(120);
  for (int i = 0; i < cases; ++i) {
    auto c = random_case(random, sizes);
    c.dropout = 0;
    c.hides_nan = random() % 3 == 0;
    check(c);
  }
}

TEST_CASE("Values may be the first numbers of keys of int8") {
  each_instruction_set<BFloat16>();
  for (const int64_t E : {1, 30, 64, 70}) {
    auto c = case_of(2, 300, 72);
    c.E = E;
    c.H = 6;
    c.G = 1;
    check(c, /*values_in_keys=*/true);
  }
}

TEST_CASE("A NaN in rows of int8 that a query sees gives NaN") {
  each_instruction_set<BFloat16>();
  for (const bool in_key : {true, false}) {
    auto c = case_of(3, 200, 64);
    c.causal = true;
    Int8Problem rows(c);
    // The last two of three queries see it.
    constexpr int64_t kToken = 198;
    const auto nan = std::numeric_limits<float>::quiet_NaN();
    auto& spoiled = in_key ? rows.keys : rows.values;
    std::memcpy(&spoiled(0, 0, kToken, 64), &nan, sizeof(nan));
    rows.problem.compute_output();
    for (int64_t t = 0; t < c.T; ++t) {
      INFO("key " << in_key << ", query " << t);
      for (int64_t e = 0; e < c.E; ++e) {
        REQUIRE(std::isnan(rows.problem.output(0, 0, t, e)) == (t > 0));
        REQUIRE(std::isfinite(rows.problem.output(0, 1, t, e)));
      }
    }
  }
}

TEST_CASE("A query that is not finite gives NaN, also to rows of int8") {
  each_instruction_set<BFloat16>();
  for (const auto number : {kNaN, kInfinity}) {
    const auto c = case_of(2, 100, 70);
    Int8Problem rows(c);
    rows.problem.query(0, 0, 1, 69) = static_cast<float>(number);
    rows.problem.compute_output();
    CHECK(std::isnan(rows.problem.output(0, 0, 1, 0)));
    CHECK(std::isfinite(rows.problem.output(0, 0, 0, 0)));
  }
}

TEST_CASE("Rows of int8 in blocks, and any threads, give the same bits") {
  each_instruction_set<BFloat16>();
  for (const int64_t T : {1, 5}) {
    for (const int64_t S : sizes_of({1, 64, 130, 1700})) {
      auto c = case_of(T, S, 80);
      c.B = 2;
      c.H = 6;
      c.lengths = true;
      c.causal = true;
      INFO(description<float>(c));
      Int8Problem one(c);
      one.problem.compute_output(threads_of(1));
      Int8Problem other(c);
      constexpr int64_t kSize = 64;
      const auto row = c.D + kScaleBytes;
      const auto per_sequence = (S + kSize - 1) / kSize;
      std::vector<std::vector<int8_t>> memory;
      for (auto* rows : {&other.keys, &other.values}) {
        for (int64_t i = 0; i < c.B * per_sequence; ++i) {
          std::vector<int8_t> block(
              static_cast<size_t>(c.G * kSize * row), int8_t{77});
          for (int64_t g = 0; g < c.G; ++g) {
            for (int64_t j = 0; j < kSize; ++j) {
              const auto s = i % per_sequence * kSize + j;
              if (s < S) {
                std::memcpy(
                    block.data() + (g * kSize + j) * row,
                    &(*rows)(i / per_sequence, g, s, 0),
                    static_cast<size_t>(row));
              }
            }
          }
          memory.push_back(std::move(block));
        }
      }
      std::vector<const void*> blocks;
      for (const auto& block : memory) {
        blocks.push_back(block.data());
      }
      auto& a = other.problem.arguments;
      a.key = {};
      a.value = {};
      a.blocks = {
          blocks.data(),
          blocks.data() + c.B * per_sequence,
          per_sequence,
          kSize};
      a.int8_key = {{nullptr, {0, kSize * row, row}}, c.D};
      a.int8_value = {{nullptr, {0, kSize * row, row}}, c.E};
      other.problem.compute_output(threads_of(3));
      CHECK(other.problem.output.has_same_bits(one.problem.output));
    }
  }
}

} // namespace int8_test
