#include <support/test.h>

#include <tools/measure.h>

#include <functional>
#include <string>
#include <vector>

namespace measure_test {

using namespace torch_attention::testing;
using namespace torch_attention::tools;

TEST_CASE("Functions take turns, and each round begins with another one") {
  std::string turns;
  const std::vector<std::function<void()>> functions{
      [&] { turns += 'a'; }, [&] { turns += 'b'; }, [&] { turns += 'c'; }};
  Effort effort;
  effort.sample_seconds = 0; // one call
  effort.seconds = 0;
  effort.least_rounds = 4;

  SECTION("There are as many rounds as asked for, however late it is") {
    const auto seconds = interleave(functions, effort);
    CHECK(turns == "abcbcacababc");
    REQUIRE(seconds.size() == 3);
    CHECK(seconds[0].size() == 4);
  }
  SECTION("A preparation comes before each turn") {
    effort.least_rounds = 2;
    interleave(functions, effort, [&] { turns += '.'; });
    CHECK(turns == ".a.b.c.b.c.a");
  }
}

TEST_CASE("A ratio is of medians, its spread that of the rounds") {
  const auto ratio = ratio_of({2, 4, 9}, {1, 1, 3});
  CHECK(ratio.median == 4);
  CHECK(ratio.p10 == 2);
  CHECK(ratio.p90 == 4);
}

} // namespace measure_test
