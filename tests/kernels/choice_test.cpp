// The kernels that Kernel::kAuto chooses.

#include <kernels/choice.h>
#include <support/test.h>

#include <cmath>

namespace choice_test {

using namespace torch_attention;
using kernels::Attention;
using kernels::Choice;
using kernels::choose;

namespace {

Attention plain() {
  Attention a;
  a.query = torch::randn({2, 3, 5, 8});
  a.key = torch::randn({2, 3, 7, 8});
  a.value = torch::randn({2, 3, 7, 8});
  return a;
}

/// A query that our kernels do not read: the negative of the values in memory.
Attention unusual() {
  auto a = plain();
  a.query = at::_neg_view(a.query);
  return a;
}

} // namespace

TEST_CASE("Our kernels compute what lies in the CPU's memory") {
  auto a = plain();
  CHECK(choose(a, Kernel::kAuto) == Choice::kTiled);
  CHECK(choose(a, Kernel::kFused) == Choice::kTiled);
  a.dropout = 0.5;
  a.rule.softcap = 3;
  CHECK(choose(a, Kernel::kAuto) == Choice::kTiled);
  CHECK(choose(a, Kernel::kFused) == Choice::kTiled);
}

TEST_CASE("The reference is taken where it is asked for") {
  auto a = plain();
  CHECK(choose(a, Kernel::kReference) == Choice::kReference);
  CHECK(choose(unusual(), Kernel::kReference) == Choice::kReference);

  SECTION("but for what is not finite, without dropout") {
    a.value.view(-1)[0] = NAN;
    CHECK(choose(a, Kernel::kReference) == Choice::kTiled);
    a.dropout = 0.5;
    CHECK(choose(a, Kernel::kReference) == Choice::kReference);
  }
}

TEST_CASE("LibTorch's kernels are taken where they know all rules") {
  auto a = unusual();
  CHECK(choose(a, Kernel::kAuto) == Choice::kLibTorch);
  CHECK(choose(a, Kernel::kFused) == Choice::kLibTorch);

  SECTION("not under a softcap") {
    a.rule.softcap = 3;
    CHECK(choose(a, Kernel::kAuto) == Choice::kReference);
    CHECK(choose(a, Kernel::kFused) == Choice::kReference);
  }
  SECTION("not beside sinks") {
    a.sinks = torch::zeros({a.query.size(1)});
    CHECK(choose(a, Kernel::kAuto) == Choice::kReference);
    CHECK(choose(a, Kernel::kFused) == Choice::kReference);
  }
  SECTION("also for windows and chunks") {
    a.rule.window = 2;
    a.rule.window_after = 2;
    CHECK(choose(a, Kernel::kFused) == Choice::kLibTorch);
    a.rule.chunk = 3;
    CHECK(choose(a, Kernel::kFused) == Choice::kLibTorch);
  }
  SECTION("with dropout on the CPU only where they are asked for") {
    a.dropout = 0.5;
    CHECK(choose(a, Kernel::kAuto) == Choice::kReference);
    CHECK(choose(a, Kernel::kFused) == Choice::kLibTorch);
  }
  SECTION("not for a single key") {
    a.key = a.key.slice(2, 0, 1);
    a.value = a.value.slice(2, 0, 1);
    CHECK(choose(a, Kernel::kFused) == Choice::kReference);
  }
}

TEST_CASE("The reference computes what has no numbers") {
  auto a = plain();
  const auto kernel = GENERATE(Kernel::kAuto, Kernel::kFused);

  SECTION("empty") {
    a.query = a.query.slice(2, 0, 0);
    CHECK(choose(a, kernel) == Choice::kReference);
  }
  SECTION("on the device meta") {
    for (auto* x : {&a.query, &a.key, &a.value}) {
      *x = x->to(torch::kMeta);
    }
    CHECK(choose(a, kernel) == Choice::kReference);
  }
}

} // namespace choice_test
