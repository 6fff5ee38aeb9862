// The kernel of rotary embedding, against LibTorch's operators.

#include <kernels/rotary.h>

#include <support/close.h>
#include <support/instruction_set.h>
#include <support/test.h>

#include <torch_attention/nn/options/attention.h>

namespace rotary_kernel_test {

using namespace torch_attention;
using namespace torch_attention::testing;

namespace {

struct Operands {
  torch::Tensor x;
  torch::Tensor cos;
  torch::Tensor sin;
};

torch::Tensor rotate(
    const torch::Tensor& x,
    const Operands& o,
    bool by_halves,
    Kernel kernel = Kernel::kAuto) {
  return kernels::rotate(x, o.cos, o.sin, by_halves, kernel);
}

/// The formula by operators: `transformers`' order of roundings.
torch::Tensor expected(const Operands& o, bool by_halves) {
  const auto pairs = o.cos.size(-1);
  const auto part = [&](int64_t begin, int64_t end, int64_t step) {
    return o.x.slice(-1, begin, end, step);
  };
  const auto first = by_halves ? part(0, pairs, 1) : part(0, 2 * pairs, 2);
  const auto second =
      by_halves ? part(pairs, 2 * pairs, 1) : part(1, 2 * pairs, 2);
  const auto one = first * o.cos - second * o.sin;
  const auto other = second * o.cos + first * o.sin;
  const auto rotated = by_halves ? torch::cat({one, other}, -1)
                                 : torch::stack({one, other}, -1).flatten(-2);
  return torch::cat(
      {rotated.to(o.x.scalar_type()), o.x.slice(-1, 2 * pairs)}, -1);
}

Operands draw(
    torch::IntArrayRef sizes,
    int64_t pairs,
    bool for_each,
    torch::ScalarType dtype) {
  // (B, H, T, D) as projections leave it.
  const auto x = torch::randn({sizes[0], sizes[2], sizes[1], sizes[3]})
                     .to(dtype)
                     .transpose(1, 2);
  const auto angles = for_each ? torch::rand({sizes[0], 1, sizes[2], pairs})
                               : torch::rand({sizes[2], pairs});
  return {x, (6 * angles).cos(), (6 * angles).sin()};
}

} // namespace

TEST_CASE("Heads are rotated to the bits of the operators") {
  const auto dtype =
      GENERATE(torch::kFloat, torch::kDouble, torch::kBFloat16, torch::kHalf);
  const auto set = GENERATE(
      cpu::InstructionSet::kPortable,
      cpu::InstructionSet::kAvx2,
      cpu::InstructionSet::kAvx512);
  const auto by_halves = GENERATE(true, false);
  const auto for_each = GENERATE(true, false);
  const WithInstructionSet with(set);
  torch::manual_seed(1);
  for (const auto& [head_dim, pairs] : std::vector<std::pair<int64_t, int64_t>>{
           {2, 1}, {6, 2}, {64, 32}, {80, 40}, {96, 13}, {130, 65}, {72, 36}}) {
    CAPTURE(toString(dtype), set, by_halves, for_each, head_dim, pairs);
    const auto o = draw({2, 3, 5, head_dim}, pairs, for_each, dtype);
    const auto y = rotate(o.x, o, by_halves);
    CHECK_THAT(y, IsEqualTo(expected(o, by_halves)));
    CHECK(y.is_contiguous());
  }
  // Enough for several threads.
  const auto many = draw({2, 4, 300, 64}, 32, for_each, dtype);
  CHECK_THAT(
      rotate(many.x, many, by_halves), IsEqualTo(expected(many, by_halves)));
}

TEST_CASE("Heads in any order of memory are rotated") {
  const auto by_halves = GENERATE(true, false);
  torch::manual_seed(2);
  auto o = draw({2, 3, 5, 8}, 4, false, torch::kFloat);
  const auto y = expected(o, by_halves);
  const auto check = [&](const torch::Tensor& x, const Operands& tables) {
    CHECK_THAT(rotate(x, tables, by_halves), IsEqualTo(y));
  };
  check(o.x.contiguous(), o);
  check(o.x.transpose(2, 3).contiguous().transpose(2, 3), o);
  check(torch::cat({o.x, o.x}, -1).slice(-1, 0, 8), o);
  const auto channels_last = o.x.contiguous(at::MemoryFormat::ChannelsLast);
  for (const auto kernel : {Kernel::kAuto, Kernel::kReference}) {
    const auto z = rotate(channels_last, o, by_halves, kernel);
    CHECK_THAT(z, IsEqualTo(y));
    CHECK(z.is_contiguous());
  }
  Operands tables = o;
  tables.cos = o.cos.t().contiguous().t();
  check(o.x, tables);
  const auto one = o.x.slice(1, 0, 1);
  CHECK_THAT(
      rotate(one.expand({2, 3, 5, 8}), o, by_halves).slice(1, 2, 3),
      IsEqualTo(y.slice(1, 0, 1)));
}

TEST_CASE("The gradients of rotated heads are those of the operators") {
  const auto by_halves = GENERATE(true, false);
  torch::manual_seed(3);
  auto o = draw({2, 3, 5, 10}, 4, true, torch::kFloat);
  o.x.requires_grad_();
  const auto factor = torch::randn({2, 3, 5, 10});
  const auto gradients = [&](const torch::Tensor& y) {
    const auto first = torch::autograd::grad(
        {(y * y * factor).sum()}, {o.x}, {}, {}, /*create_graph=*/true)[0];
    const auto second = torch::autograd::grad({first.square().sum()}, {o.x})[0];
    return torch::stack({first.detach(), second});
  };
  CHECK_THAT(
      gradients(rotate(o.x, o, by_halves)),
      IsCloseTo(gradients(expected(o, by_halves)), Tolerance(1e-5, 1e-5)));
}

TEST_CASE("The gradients of rotated heads have the operators' bits") {
  const auto dtype = GENERATE(torch::kFloat, torch::kDouble);
  const auto by_halves = GENERATE(true, false);
  torch::manual_seed(5);
  // Enough for several threads.
  auto o = draw({2, 4, 300, 64}, 30, true, dtype);
  o.x.requires_grad_();
  const auto factor = torch::randn({2, 4, 300, 64}, dtype);
  const auto gradient = [&](const torch::Tensor& y) {
    return torch::autograd::grad({(y * factor).sum()}, {o.x})[0];
  };
  const auto theirs = gradient(expected(o, by_halves));
  CHECK_THAT(gradient(rotate(o.x, o, by_halves)), IsEqualTo(theirs));
  CHECK_THAT(
      gradient(rotate(o.x, o, by_halves, Kernel::kReference)),
      IsEqualTo(theirs));
}

TEST_CASE("The gradients of rotated half precision are rounded once") {
  const auto by_halves = GENERATE(true, false);
  torch::manual_seed(6);
  auto o = draw({2, 3, 5, 8}, 4, true, torch::kBFloat16);
  o.x.requires_grad_();
  const auto factor = torch::randn({2, 3, 5, 8}).to(torch::kBFloat16);
  const auto ours =
      torch::autograd::grad({rotate(o.x, o, by_halves)}, {o.x}, {factor})[0];
  Operands back{factor, o.cos, -o.sin};
  CHECK_THAT(ours, IsEqualTo(expected(back, by_halves)));
}

TEST_CASE("Heads that share memory are rotated") {
  const auto by_halves = GENERATE(true, false);
  torch::manual_seed(7);
  auto o = draw({2, 3, 5, 16}, 8, false, torch::kFloat);
  o.x = torch::randn({2, 3, 20}).unfold(-1, 16, 1);
  CHECK_THAT(rotate(o.x, o, by_halves), IsEqualTo(expected(o, by_halves)));
}

TEST_CASE("Tables of float64 rotate heads of float64") {
  auto o = draw({2, 3, 5, 8}, 4, false, torch::kDouble);
  o.cos = torch::rand({5, 4}, torch::kDouble);
  o.sin = torch::rand({5, 4}, torch::kDouble);
  CHECK_THAT(rotate(o.x, o, true), IsEqualTo(expected(o, true)));
  o.x = o.x.to(torch::kFloat);
  CHECK_THAT(rotate(o.x, o, true), IsEqualTo(expected(o, true)));
}

TEST_CASE("Tables of angles may be trained") {
  torch::manual_seed(4);
  auto o = draw({2, 3, 5, 8}, 4, false, torch::kFloat);
  o.cos.requires_grad_();
  const auto gradient = [&](const torch::Tensor& y) {
    return torch::autograd::grad({y.square().sum()}, {o.cos})[0];
  };
  CHECK_THAT(
      gradient(rotate(o.x, o, true)), IsCloseTo(gradient(expected(o, true))));
}

TEST_CASE("Rotated heads keep nothing but the angles for their gradients") {
  auto o = draw({1, 2, 3, 4}, 2, false, torch::kFloat);
  auto leaf = o.x.clone().requires_grad_();
  auto y = leaf * 1;
  const auto* storage = y.storage().unsafeGetStorageImpl();
  const auto rotated = rotate(y, o, true);
  REQUIRE(rotated.requires_grad());
  CHECK(
      c10::raw::intrusive_ptr::use_count(
          const_cast<c10::StorageImpl*>(storage)) == 1);
}

} // namespace rotary_kernel_test
