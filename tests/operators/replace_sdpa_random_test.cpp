// Random calls of LibTorch's attention: its own results and ours.

#include <operators/random_sdpa.h>
#include <operators/replaced_sdpa.h>
#include <support/test.h>

namespace replace_sdpa_random_test {

using namespace torch_attention;
using namespace torch_attention::testing;

TEST_CASE("Random calls give LibTorch's own results") {
  const auto calls = draw_sdpa_calls();
  const auto factors = draw_sdpa_factors();
  size_t ours = 0;
  size_t errors = 0;
  for (const auto& call : calls) {
    SdpaResult expected;
    {
      const SdpaReplaced replaced(false);
      expected = result_of(call, factors);
    }
    SdpaResult result;
    const auto counts = calls_of([&] { result = result_of(call, factors); });
    check_result(call, result, expected);
    // The flash operator and its backward pass count as two.
    ours += counts.ours > 0 ? 1 : 0;
    errors += expected.error.empty() ? 0 : 1;
  }
  // LibTorch refuses some calls: a mask together with causal.
  CHECK(ours == calls.size() - errors);
  CHECK(errors > 10);
  CHECK(errors < 200);
}

} // namespace replace_sdpa_random_test
