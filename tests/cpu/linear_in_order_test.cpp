#include <cpu/linear.h>
#include <cpu/numbers.h>
#include <cpu/test.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <random>
#include <vector>

namespace linear_in_order_test {

using namespace torch_attention::cpu;
using namespace torch_attention::cpu::testing;

template <typename X>
struct Layer {
  int64_t in;
  int64_t out;
  std::vector<X> weight;
  std::vector<X> bias;

  /// Returns the output (rows, out) of x (rows, in).
  std::vector<X> multiply(const X* x, int64_t rows, int64_t threads) const {
    std::vector<X> output(static_cast<size_t>(rows * out));
    LinearInput<X> input;
    input.rows = rows;
    input.in = in;
    input.data = x;
    input.in_order = true;
    linear<X>(
        input,
        {{out, weight.data(), bias.data(), output.data()}},
        threads_of(threads));
    return output;
  }
};

TEMPLATE_TEST_CASE(
    "A row of a linear layer has the same bits among any number of rows",
    "",
    float,
    BFloat16,
    Float16) {
  using X = TestType;
  each_instruction_set<X>();
  std::mt19937 random(5);
  std::normal_distribution<double> normal;
  const auto draw = [&](int64_t n) {
    std::vector<X> numbers;
    for (int64_t i = 0; i < n; ++i) {
      numbers.push_back(stored<X>(normal(random)));
    }
    return numbers;
  };
  const int64_t sizes[][2] = {{1, 1}, {20, 70}, {33, 5}, {300, 130}, {514, 64}};
  for (const auto& [in, out] : sizes) {
    const Layer<X> layer{in, out, draw(in * out), draw(out)};
    const int64_t all = 700;
    const auto x = draw(all * in);
    const auto expected = layer.multiply(x.data(), all, 1);
    for (const int64_t rows : sizes_of({1, 2, 4, 5, 8, 9, 17, 32, 33, 100})) {
      INFO(rows << " rows of " << in << " to " << out);
      const auto first = static_cast<int64_t>(random()) % (all - rows);
      for (const int64_t threads : {1, 3}) {
        const auto output =
            layer.multiply(x.data() + first * in, rows, threads);
        CHECK(
            std::memcmp(
                output.data(),
                expected.data() + first * out,
                output.size() * sizeof(X)) == 0);
      }
    }
    // The sums are right.
    double worst = 0;
    for (int64_t r = 0; r < all; r += 37) {
      for (int64_t o = 0; o < out; ++o) {
        auto sum = double{number(layer.bias[static_cast<size_t>(o)])};
        double size = std::abs(sum);
        for (int64_t i = 0; i < in; ++i) {
          const auto product =
              double{number(x[static_cast<size_t>(r * in + i)])} *
              double{number(layer.weight[static_cast<size_t>(o * in + i)])};
          sum += product;
          size += std::abs(product);
        }
        const auto computed =
            double{number(expected[static_cast<size_t>(r * out + o)])};
        worst = std::max(worst, std::abs(computed - sum) / (1e-3 + size));
      }
    }
    INFO(in << " to " << out);
    CHECK(worst < (sizeof(X) == 2 ? 0x1p-8 : 1e-6));
  }
}

} // namespace linear_in_order_test
