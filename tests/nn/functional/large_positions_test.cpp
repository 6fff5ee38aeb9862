#include <support/close.h>
#include <support/every_kernel.h>
#include <support/test.h>

#include <limits>
#include <vector>

namespace large_positions_test {

using namespace torch_attention;
using namespace torch_attention::testing;
namespace F = torch_attention::functional;
using Options = F::ScaledDotProductAttentionFuncOptions;

namespace {

constexpr int64_t kMost = std::numeric_limits<int64_t>::max();
constexpr int64_t kLeast = std::numeric_limits<int64_t>::min();
constexpr int64_t kTokens = 9;
constexpr int64_t kKeys = 12;

} // namespace

TEST_CASE("A window as large as can be hides nothing") {
  torch::manual_seed(1);
  const Operands x(kTokens, kKeys);
  const bool causal = GENERATE(false, true);
  const auto expected = x.attend(Options().causal(causal));
  for (const auto window :
       {kMost, kMost - 1, int64_t{1} << 32, (int64_t{1} << 31) + 2}) {
    CAPTURE(causal, window);
    auto options = Options().causal(causal).window(window);
    if (!causal) {
      options.window_after(window);
    }
    check_all_close(x.attend(options), expected);
    check_all_close(
        x.attend(
            Options(options).query_offsets(torch::full({2}, kKeys - kTokens))),
        expected);
  }
}

TEST_CASE("Positions and lengths may be any 64-bit numbers") {
  torch::manual_seed(2);
  const Operands x(kTokens, kKeys);
  const auto far = int64_t{1} << GENERATE(32, 33, 62);
  const auto lengths = torch::tensor({kMost, far});
  const auto none = torch::tensor({kLeast, -far});
  const auto after = torch::tensor({kMost, far});
  const auto before = torch::tensor({kLeast, -far});
  CAPTURE(far);
  const auto everything = x.attend(Options());
  std::vector<torch::Tensor> nothing;
  for (const auto& tensor : everything) {
    nothing.push_back(torch::zeros_like(tensor));
  }
  check_all_close(x.attend(Options().key_lengths(lengths)), everything);
  check_all_close(x.attend(Options().key_lengths(none)), nothing);
  const auto causal = Options().causal(true);
  check_all_close(x.attend(Options(causal).query_offsets(after)), everything);
  check_all_close(x.attend(Options(causal).query_offsets(before)), nothing);
  check_all_close(
      x.attend(Options(causal).query_offsets(after).window(5)), nothing);
  // That far back a window of any number ahead ends before the keys.
  check_all_close(
      x.attend(Options().query_offsets(before).window(5).window_after(
          far - kTokens)),
      nothing);
  // A window that reaches back from there to the last seven keys.
  const auto some = x.attend(Options()
                                 .causal(true)
                                 .window(far - kKeys + 7)
                                 .query_offsets(torch::tensor({far, far})));
  const auto keys = torch::arange(kKeys).unsqueeze(0);
  const auto first = torch::arange(kTokens).unsqueeze(1) + (kKeys - 7 + 1);
  check_all_close(some, x.attend(Options().mask(keys < first)));
}

TEST_CASE("Distances from any position are those between keys") {
  torch::manual_seed(3);
  const Operands x(kTokens, kKeys);
  const auto options = Options().alibi_slopes(F::alibi_slopes(2));
  const auto at = [&](int64_t position) {
    return x.attend(
        Options(options).query_offsets(torch::tensor({position, position})));
  };
  const auto after = at(kKeys + 5);
  const auto before = at(-kTokens - 5);
  for (const auto far : {int64_t{1} << 33, int64_t{1} << 62, kMost}) {
    CAPTURE(far);
    check_all_close(at(far), after);
    check_all_close(at(-far), before);
  }
  check_all_close(at(kLeast), before);
}

TEST_CASE("Modules take a window as large as can be") {
  const auto kernel = GENERATE(Kernel::kReference, Kernel::kFused);
  // Small enough for a kernel of its own, and not.
  const int64_t size = GENERATE(4, 64);
  CAPTURE(kernel, size);
  const auto options =
      MultiHeadAttentionOptions(size, size, 40, 2).kernel(kernel);
  torch::manual_seed(4);
  MultiHeadAttention plain(options);
  torch::manual_seed(4);
  MultiHeadAttention windowed(MultiHeadAttentionOptions(options).window(kMost));
  const auto x = torch::randn({2, 7, size});
  CHECK_THAT(windowed(x), IsCloseTo(plain(x)));
  plain->eval();
  windowed->eval();
  auto cache = windowed->make_cache(2);
  CHECK_THAT(windowed->decode(x, cache), IsCloseTo(plain(x)));
  const auto token = torch::randn({2, 1, size});
  const auto all = plain(torch::cat({x, token}, 1));
  CHECK_THAT(windowed->decode(token, cache), IsCloseTo(all.slice(1, 7)));
}

} // namespace large_positions_test
