// Rotary position embedding by tables of cosines and sines.

#include <support/close.h>
#include <support/test.h>

namespace rotary_tables_test {

using namespace torch_attention;
using namespace torch_attention::testing;
namespace F = torch_attention::functional;

namespace {

/// (N, pairs)
torch::Tensor angles(int64_t N, int64_t pairs) {
  return torch::rand({N, pairs}, torch::kDouble) * 6;
}

/// x (B, H, T, D) rotated by angles (B, T, pairs), number by number.
torch::Tensor by_loops(
    const torch::Tensor& x,
    const torch::Tensor& angles,
    RotaryPairing pairing) {
  auto result = x.detach().to(torch::kDouble).clone();
  const auto pairs = angles.size(-1);
  auto a = result.accessor<double, 4>();
  const auto angle = angles.accessor<double, 3>();
  for (int64_t b = 0; b < x.size(0); ++b) {
    for (int64_t h = 0; h < x.size(1); ++h) {
      for (int64_t t = 0; t < x.size(2); ++t) {
        for (int64_t i = 0; i < pairs; ++i) {
          const bool halves = pairing == RotaryPairing::kHalves;
          auto& first = a[b][h][t][halves ? i : 2 * i];
          auto& second = a[b][h][t][halves ? i + pairs : 2 * i + 1];
          const auto c = std::cos(angle[b][t][i]);
          const auto s = std::sin(angle[b][t][i]);
          const auto old = first;
          first = old * c - second * s;
          second = second * c + old * s;
        }
      }
    }
  }
  return result;
}

} // namespace

TEST_CASE("Rotary embedding takes tables, as ONNX's RotaryEmbedding does") {
  torch::manual_seed(1);
  const auto pairing =
      GENERATE(RotaryPairing::kHalves, RotaryPairing::kInterleaved);
  const int64_t pairs = GENERATE(1, 3, 4);
  const auto dtype =
      GENERATE(torch::kDouble, torch::kFloat, torch::kBFloat16, torch::kHalf);
  CAPTURE(pairing, pairs, dtype);
  constexpr int64_t B = 2;
  constexpr int64_t T = 5;
  const auto x = torch::randn({B, 3, T, 8}).to(dtype);
  const auto close_to = [&](const torch::Tensor& expected) {
    return IsCloseTo(expected.to(dtype));
  };
  const auto table = angles(20, pairs);
  const auto whole = RotaryTables(table.cos(), table.sin()).pairing(pairing);
  SECTION("rows of each sequence's positions") {
    const auto positions = torch::randint(20, {B, T});
    auto tables = whole;
    CHECK_THAT(
        F::rotary_embedding(x, tables.positions(positions)),
        close_to(by_loops(x, table.index({positions}), pairing)));
  }
  SECTION("rows of positions that all sequences share") {
    const auto positions = torch::randint(20, {T}, torch::kInt);
    auto tables = whole;
    CHECK_THAT(
        F::rotary_embedding(x, tables.positions(positions)),
        close_to(by_loops(
            x,
            table.index({positions.to(torch::kLong)}).expand({B, -1, -1}),
            pairing)));
  }
  SECTION("a row for each token") {
    const auto own = table.slice(0, 0, T);
    CHECK_THAT(
        F::rotary_embedding(
            x, RotaryTables(own.cos(), own.sin()).pairing(pairing)),
        close_to(by_loops(x, own.expand({B, -1, -1}), pairing)));
  }
  SECTION("a row for each token of each sequence") {
    const auto own = angles(B * T, pairs).view({B, T, pairs});
    CHECK_THAT(
        F::rotary_embedding(
            x, RotaryTables(own.cos(), own.sin()).pairing(pairing)),
        close_to(by_loops(x, own, pairing)));
    CHECK_THAT(
        F::rotary_embedding(
            x.select(1, 0),
            RotaryTables(own.cos(), own.sin()).pairing(pairing)),
        close_to(by_loops(x.narrow(1, 0, 1), own, pairing).squeeze(1)));
  }
}

TEST_CASE("Halves of halves rotate each half of the elements by itself") {
  torch::manual_seed(4);
  const auto pairing = RotaryPairing::kHalvesOfHalves;
  const int64_t pairs = GENERATE(2, 4);
  const auto x = torch::randn({2, 3, 5, 9});
  const auto table = angles(5, pairs);
  const auto rotated = F::rotary_embedding(
      x, RotaryTables(table.cos(), table.sin()).pairing(pairing));
  for (const int64_t half : {0, 1}) {
    const auto own = table.slice(1, half * pairs / 2, (half + 1) * pairs / 2);
    CHECK_THAT(
        rotated.slice(-1, half * pairs, (half + 1) * pairs),
        IsCloseTo(F::rotary_embedding(
            x.slice(-1, half * pairs, (half + 1) * pairs),
            RotaryTables(own.cos(), own.sin()))));
  }
  CHECK_THAT(rotated.slice(-1, 2 * pairs), IsEqualTo(x.slice(-1, 2 * pairs)));
  const auto odd = angles(5, 3);
  THROWS_WITH(
      F::rotary_embedding(
          x, RotaryTables(odd.cos(), odd.sin()).pairing(pairing)),
      "expected a multiple of 4 rotated elements, but got 6");
}

TEST_CASE("Tables of the options' angles rotate as the options do") {
  torch::manual_seed(2);
  const auto x = torch::randn({2, 3, 5, 8});
  const auto positions = torch::tensor({0, 4, 2, 7, 30});
  const auto frequencies = torch::pow(10000.0, torch::arange(0, 8, 2) / -8.0);
  const auto table = torch::arange(40).unsqueeze(1) * frequencies;
  CHECK_THAT(
      F::rotary_embedding(
          x, RotaryTables(table.cos(), table.sin()).positions(positions)),
      IsCloseTo(F::rotary_embedding(x, positions), {1e-5, 1e-5}));
}

TEST_CASE("Gradients go to x and to the tables") {
  torch::manual_seed(3);
  const auto x = torch::randn({2, 3, 4, 6}, torch::kDouble).requires_grad_();
  const auto cos = torch::randn({9, 2}, torch::kDouble).requires_grad_();
  const auto sin = torch::randn({9, 2}, torch::kDouble).requires_grad_();
  const auto positions = torch::tensor({{0, 3, 3, 8}, {1, 2, 0, 4}});
  const auto loss = [&](const torch::Tensor& x_,
                        const torch::Tensor& cos_,
                        const torch::Tensor& sin_) {
    return F::rotary_embedding(
               x_, RotaryTables(cos_, sin_).positions(positions))
        .sin()
        .sum();
  };
  const auto slopes = torch::autograd::grad({loss(x, cos, sin)}, {x, cos, sin});
  const torch::NoGradGuard no_grad;
  const std::vector<torch::Tensor> leaves = {x, cos, sin};
  for (size_t i = 0; i < leaves.size(); ++i) {
    const auto direction = torch::randn_like(leaves[i]);
    const auto loss_at = [&](double step) {
      auto moved = leaves;
      moved[i] = moved[i] + step * direction;
      return loss(moved[0], moved[1], moved[2]).item<double>();
    };
    const auto expected = (loss_at(1e-5) - loss_at(-1e-5)) / 2e-5;
    CHECK(
        (slopes[i] * direction).sum().item<double>() ==
        Approx(expected).epsilon(1e-6));
  }
}

TEST_CASE("Tables that do not fit are refused") {
  const auto x = torch::randn({2, 3, 5, 8});
  const auto table = torch::randn({5, 4});
  const auto rotate = [&](const RotaryTables& tables) {
    return F::rotary_embedding(x, tables);
  };
  THROWS_WITH(rotate({table, {}}), "sin is undefined");
  THROWS_WITH(rotate({table, torch::randn({5, 3})}), "of the same shape");
  THROWS_WITH(
      rotate({torch::randn({5, 8}), torch::randn({5, 8})}),
      "at most D / 2 = 4 pairs, but got [5, 8]; of tables with each angle twice");
  THROWS_WITH(
      rotate({torch::randn({6, 4}), torch::randn({6, 4})}),
      "expected cos and sin (T, pairs)");
  THROWS_WITH(
      rotate({torch::randn({3, 5, 4}), torch::randn({3, 5, 4})}),
      "(B, T, pairs) for x (B, ..., T, D)");
  THROWS_WITH(
      rotate({table.to(torch::kLong), table.to(torch::kLong)}),
      "expected floating-point cos");
  THROWS_WITH(
      rotate({table, table.to(torch::kMeta)}), "expected the sin on cpu");
  for (const int64_t wrong : {-1, 5}) {
    const auto positions = torch::tensor({0, 1, 2, 3, 0}) + 0;
    positions[4] = wrong;
    THROWS_WITH(
        rotate(RotaryTables(table, table).positions(positions)),
        "expected positions in the tables, from 0 to 4, but got ");
  }
  THROWS_WITH(
      rotate(RotaryTables(table, table).positions(torch::arange(4))),
      "expected positions (T)");
}

} // namespace rotary_tables_test
