// Windows to both sides and chunks.

#include <support/close.h>
#include <support/every_kernel.h>
#include <support/test.h>

#include <limits>
#include <optional>
#include <vector>

namespace windows_test {

using namespace torch_attention;
using namespace torch_attention::testing;
namespace F = torch_attention::functional;

using Options = F::ScaledDotProductAttentionFuncOptions;

namespace {

constexpr int64_t kMost = std::numeric_limits<int64_t>::max();

/// Positions (B, 1, T, 1) of queries.
torch::Tensor positions_from(const torch::Tensor& first, int64_t T) {
  return first.view({-1, 1, 1, 1}) + torch::arange(T).view({1, 1, -1, 1});
}

torch::Tensor tensor(std::vector<int64_t> numbers) {
  return torch::tensor(numbers, torch::kLong);
}

} // namespace

TEST_CASE("Windows to both sides equal a mask") {
  torch::manual_seed(1);
  const int64_t T = GENERATE(1, 3, 90);
  const int64_t S = GENERATE(2, 100);
  const Operands x(T, S);
  CAPTURE(T, S, static_cast<int>(x.way));
  const auto keys = torch::arange(S);
  for (const bool has_offsets : {false, true}) {
    const auto first = has_offsets ? tensor({5, -2}) : tensor({S - T, S - T});
    const auto at = positions_from(first, T);
    auto base = Options();
    if (has_offsets) {
      base.query_offsets(first);
    }
    for (const int64_t after : {0, 4, 70}) {
      const auto ahead = keys > at + after;
      check_all_close(
          x.attend(Options(base).window_after(after)),
          x.attend(Options().mask(ahead)));
      check_all_close(
          x.attend(Options(base).window(5).window_after(after)),
          x.attend(Options().mask(ahead.bitwise_or(keys <= at - 5))));
    }
  }
}

TEST_CASE("A window of none after is causal, and of all hides nothing") {
  torch::manual_seed(2);
  const Operands x(9, 12);
  check_all_close(
      x.attend(Options().window(3).window_after(0)),
      x.attend(Options().causal(true).window(3)));
  check_all_close(x.attend(Options().window_after(kMost)), x.attend(Options()));
  // From kMost back to t, and from the second lowest number up to 1 + t.
  const auto keys = torch::arange(12);
  const auto t = torch::arange(9).unsqueeze(1);
  const auto least = std::numeric_limits<int64_t>::min();
  check_all_close(
      x.attend(Options().window(kMost).window_after(kMost).query_offsets(
          tensor({kMost, least + 2}))),
      x.attend(Options().mask(
          torch::stack({keys <= t, keys > t + 1}).unsqueeze(1))));
}

TEST_CASE("Chunks equal a mask") {
  torch::manual_seed(3);
  const int64_t T = GENERATE(1, 3, 90);
  const int64_t S = GENERATE(2, 100);
  const bool causal = GENERATE(false, true);
  const Operands x(T, S);
  CAPTURE(T, S, causal, static_cast<int>(x.way));
  const auto keys = torch::arange(S);
  for (const bool has_offsets : {false, true}) {
    const auto first = has_offsets ? tensor({5, -2}) : tensor({S - T, S - T});
    const auto at = positions_from(first, T);
    for (const int64_t chunk : {1, 7, 64, 1000}) {
      auto hidden =
          torch::div(keys, chunk, "floor") != torch::div(at, chunk, "floor");
      if (causal) {
        hidden = hidden.bitwise_or(keys > at);
      }
      auto options = Options().causal(causal).chunk(chunk);
      if (has_offsets) {
        options.query_offsets(first);
      }
      check_all_close(x.attend(options), x.attend(Options().mask(hidden)));
    }
  }
}

TEST_CASE("Chunks and positions of any 64-bit number") {
  torch::manual_seed(4);
  const Operands x(9, 12);
  const auto everything = x.attend(Options());
  const auto nothing =
      x.attend(Options().mask(torch::ones({9, 12}, torch::kBool)));
  for (const auto chunk : {kMost, kMost - 3, int64_t{1} << 62}) {
    CAPTURE(chunk);
    const auto at = [&](int64_t offset) {
      return x.attend(
          Options().chunk(chunk).query_offsets(tensor({offset, offset})));
    };
    check_all_close(x.attend(Options().chunk(chunk)), everything);
    check_all_close(at(1000), everything);
    check_all_close(at(chunk - 9), everything);
    check_all_close(at(chunk), nothing);
    check_all_close(at(-9), nothing);
    check_all_close(at(-chunk), nothing);
    check_all_close(at(std::numeric_limits<int64_t>::min()), nothing);
    check_all_close(at(kMost), nothing);
  }
}

TEST_CASE("Windows and chunks that say two things are refused") {
  const auto x = torch::randn({1, 2, 4, 4});
  const auto attend = [&](const Options& options) {
    return F::scaled_dot_product_attention(x, x, x, options);
  };
  THROWS_WITH(
      attend(Options().window(5)),
      "expected window_after beside window = 5 without causal, since a window "
      "hides no later keys; window_after(4) lets a query see as far ahead as "
      "back");
  THROWS_WITH(
      attend(Options().window_after(-1)),
      "expected window_after >= 0, but got -1");
  THROWS_WITH(
      attend(Options().causal(true).window_after(2)),
      "expected no window_after beside causal, which hides all later keys, but "
      "got window_after = 2");
  THROWS_WITH(attend(Options().chunk(0)), "expected a chunk > 0, but got 0");
  THROWS_WITH(
      attend(Options().causal(true).window(3).chunk(2)),
      "expected a chunk or windows, but got chunk = 2 beside window = 3");
  THROWS_WITH(
      attend(Options().window_after(3).chunk(2)),
      "expected a chunk or windows, but got chunk = 2 beside window_after = 3");
  THROWS_WITH(
      CausalAttention(CausalAttentionOptions(3, 2, 6).causal(false).window(2)),
      "CausalAttention: expected window_after beside window = 2");
  THROWS_WITH(
      MultiHeadAttentionWrapper(
          MultiHeadAttentionWrapperOptions(3, 2, 6, 2).window_after(2)),
      "CausalAttention: expected no window_after beside causal");
  THROWS_WITH(
      MultiHeadAttention(
          MultiHeadAttentionOptions(4, 4, 6, 2).chunk(2).window(2)),
      "MultiHeadAttention: expected a chunk or windows");
}

} // namespace windows_test
