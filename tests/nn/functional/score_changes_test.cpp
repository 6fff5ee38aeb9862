// Changes of scores by their value (softcap) and by distance (ALiBi).

#include <support/close.h>
#include <support/decode.h>
#include <support/test.h>

#include <cmath>
#include <limits>
#include <vector>

namespace score_changes_test {

using namespace torch_attention;
using namespace torch_attention::testing;
namespace F = torch_attention::functional;

using Options = F::ScaledDotProductAttentionFuncOptions;

namespace {

constexpr int64_t kBatch = 2;
constexpr int64_t kHeads = 4;
constexpr int64_t kSize = 8;

struct Changes {
  std::string name;
  int64_t T;
  int64_t S;
  double softcap = 0;
  std::vector<double> slopes;
  bool causal = true;
  std::vector<int64_t> offsets;

  Options options(Kernel kernel) const {
    auto options = Options().kernel(kernel).causal(causal);
    if (softcap > 0) {
      options.softcap(softcap);
    }
    if (!slopes.empty()) {
      options.alibi_slopes(torch::tensor(slopes, torch::kDouble));
    }
    if (!offsets.empty()) {
      options.query_offsets(torch::tensor(offsets));
    }
    return options;
  }
};

std::vector<Changes> every_kind() {
  const std::vector<double> slopes = {0.5, 0.25, 0, 2};
  return {
      {"capped", 20, 20, 1.5, {}, true, {}},
      {"capped, all keys", 7, 9, 0.5, {}, false, {}},
      {"capped so high that nothing changes", 20, 20, 1e6, {}, true, {}},
      {"distance", 20, 20, 0, slopes, true, {}},
      {"distance both ways", 20, 30, 0, slopes, false, {}},
      {"a single token at the end of a cache", 1, 70, 1.5, slopes, true, {}},
      {"several tokens at different positions",
       3,
       40,
       1.5,
       slopes,
       true,
       {37, 10}},
      {"both, over several tiles", 130, 130, 1.5, slopes, true, {}},
  };
}

/// (B, H, T, kSize), in plain loops.
torch::Tensor by_loops(
    const Changes& changes,
    const torch::Tensor& query,
    const torch::Tensor& key,
    const torch::Tensor& value) {
  const auto q = query.accessor<double, 4>();
  const auto k = key.accessor<double, 4>();
  const auto v = value.accessor<double, 4>();
  auto output = torch::zeros_like(query);
  auto o = output.accessor<double, 4>();
  for (int64_t b = 0; b < kBatch; ++b) {
    const auto offset = changes.offsets.empty()
        ? changes.S - changes.T
        : changes.offsets[static_cast<size_t>(b)];
    for (int64_t h = 0; h < kHeads; ++h) {
      for (int64_t t = 0; t < changes.T; ++t) {
        double sum = 0;
        for (int64_t s = 0; s < changes.S; ++s) {
          if (changes.causal && s > offset + t) {
            continue;
          }
          double score = 0;
          for (int64_t d = 0; d < kSize; ++d) {
            score += q[b][h][t][d] * k[b][h][s][d];
          }
          score /= std::sqrt(static_cast<double>(kSize));
          if (changes.softcap > 0) {
            score = changes.softcap * std::tanh(score / changes.softcap);
          }
          if (!changes.slopes.empty()) {
            score -= changes.slopes[static_cast<size_t>(h)] *
                static_cast<double>(std::abs(offset + t - s));
          }
          sum += std::exp(score);
          for (int64_t d = 0; d < kSize; ++d) {
            o[b][h][t][d] += std::exp(score) * v[b][h][s][d];
          }
        }
        for (int64_t d = 0; d < kSize; ++d) {
          o[b][h][t][d] /= sum;
        }
      }
    }
  }
  return output;
}

struct Operands {
  torch::Tensor query;
  torch::Tensor key;
  torch::Tensor value;

  explicit Operands(const Changes& changes)
      : query(3 * draw(changes.T)),
        key(draw(changes.S)),
        value(draw(changes.S)) {}

  static torch::Tensor draw(int64_t tokens) {
    return torch::randn({kBatch, kHeads, tokens, kSize}, torch::kDouble);
  }

  torch::Tensor attend(const Options& options) const {
    return F::scaled_dot_product_attention(query, key, value, options);
  }
};

} // namespace

TEST_CASE("Capped scores and distances equal plain loops") {
  const auto kernel =
      GENERATE(Kernel::kReference, Kernel::kFused, Kernel::kAuto);
  torch::manual_seed(1);
  for (const auto& changes : every_kind()) {
    CAPTURE(kernel, changes.name);
    const Operands x(changes);
    CHECK_THAT(
        x.attend(changes.options(kernel)),
        IsCloseTo(by_loops(changes, x.query, x.key, x.value)));
  }
}

TEST_CASE("Gradients through capped scores and distances are the reference's") {
  const bool twice = GENERATE(false, true);
  torch::manual_seed(2);
  for (const auto& changes : every_kind()) {
    CAPTURE(twice, changes.name);
    Operands x(changes);
    const auto grad = torch::randn_like(x.query);
    const auto gradients = [&](Kernel kernel) {
      for (auto* leaf : {&x.query, &x.key, &x.value}) {
        *leaf = leaf->detach().requires_grad_();
      }
      const std::vector<torch::Tensor> inputs{x.query, x.key, x.value};
      const auto first = torch::autograd::grad(
          {x.attend(changes.options(kernel))}, inputs, {grad}, true, twice);
      return twice ? torch::autograd::grad({first[0].pow(2).sum()}, inputs)
                   : first;
    };
    const auto fused = gradients(Kernel::kFused);
    const auto reference = gradients(Kernel::kReference);
    for (size_t i = 0; i < fused.size(); ++i) {
      CHECK_THAT(fused[i], IsCloseTo(reference[i]));
    }
  }
}

TEST_CASE("Slopes may be learned") {
  torch::manual_seed(3);
  const Operands x({"", 9, 9, 0, {}, true, {}});
  auto slopes = F::alibi_slopes(kHeads).to(torch::kDouble).requires_grad_();
  const auto loss = [&] {
    return x.attend(Options().causal(true).alibi_slopes(slopes)).pow(2).sum();
  };
  const auto gradient = torch::autograd::grad({loss()}, {slopes})[0];
  const torch::NoGradGuard no_grad;
  constexpr double kStep = 1e-6;
  for (int64_t h = 0; h < kHeads; ++h) {
    slopes[h] += kStep;
    const auto above = loss().item<double>();
    slopes[h] -= 2 * kStep;
    const auto below = loss().item<double>();
    slopes[h] += kStep;
    CHECK(
        std::abs((above - below) / (2 * kStep) - gradient[h].item<double>()) <
        1e-6);
  }
}

TEST_CASE("Scores of any size are capped") {
  const auto dtype = GENERATE(torch::kFloat, torch::kDouble, torch::kBFloat16);
  const auto kernel = GENERATE(Kernel::kReference, Kernel::kFused);
  const int64_t T = GENERATE(1, 5);
  CAPTURE(dtype, kernel, T);
  constexpr double kHuge = 1e30;
  // Two keys for and against each query: capped at 2 and -2.
  const auto query = torch::full({1, 1, T, 4}, kHuge, dtype);
  const auto key =
      torch::tensor({1.0, -1.0}).view({1, 1, 2, 1}).expand({1, 1, 2, 4});
  const auto value = torch::tensor({1.0, 0.0}).view({1, 1, 2, 1});
  const auto output = F::scaled_dot_product_attention(
      query,
      key.to(dtype),
      value.to(dtype),
      Options().softcap(2).kernel(kernel));
  const auto expected = 1 / (1 + std::exp(-4.0));
  CHECK_THAT(output, IsCloseTo(torch::full({1, 1, T, 1}, expected, dtype)));
}

TEST_CASE("Distances too large for float16 hide nothing") {
  const auto kernel = GENERATE(Kernel::kReference, Kernel::kFused);
  torch::manual_seed(6);
  const auto dtype = GENERATE(torch::kHalf, torch::kBFloat16);
  const auto q = torch::randn({1, 1, 2, 8}).to(dtype);
  const auto k = torch::randn({1, 1, 5, 8}).to(dtype);
  // The last key is nearer by 1, and by 1000 of slope.
  const auto output = F::scaled_dot_product_attention(
      q,
      k,
      k,
      Options()
          .kernel(kernel)
          .alibi_slopes(torch::full({1}, 1000.0))
          .query_offsets(torch::tensor({2000})));
  CHECK_THAT(output, IsCloseTo(k.slice(2, 4).expand_as(output), {1e-2, 1e-2}));
}

TEST_CASE("Slopes that stand for others are read as what they are") {
  torch::manual_seed(7);
  const Operands x({"", 9, 9, 0, {}, true, {}});
  const auto slopes = F::alibi_slopes(kHeads).to(torch::kDouble);
  const auto negative = at::_neg_view(-slopes);
  REQUIRE(negative.is_neg());
  CHECK_THAT(
      x.attend(Options().causal(true).alibi_slopes(negative)),
      IsCloseTo(x.attend(Options().causal(true).alibi_slopes(slopes))));
}

TEST_CASE("NaN that is hidden does not pass the cap") {
  torch::manual_seed(4);
  for (const int64_t T : {1, 4, 20}) {
    CAPTURE(T);
    const Changes changes{"", T, 30, 1.5, {0.5, 0.25, 0, 2}, true, {4, 7}};
    Operands x(changes);
    const auto unseen = [&](const torch::Tensor& rows) {
      return rows.slice(2, 7 + T);
    };
    const auto gradients = [&] {
      const std::vector<torch::Tensor> inputs{
          x.query.detach().requires_grad_(),
          x.key.detach().requires_grad_(),
          x.value.detach().requires_grad_()};
      const auto output = F::scaled_dot_product_attention(
          inputs[0], inputs[1], inputs[2], changes.options(Kernel::kFused));
      auto result =
          torch::autograd::grad({output}, inputs, {torch::ones_like(output)});
      result.push_back(output.detach());
      return result;
    };
    const auto expected = gradients();
    unseen(x.key).fill_(std::numeric_limits<double>::quiet_NaN());
    unseen(x.value).fill_(std::numeric_limits<double>::infinity());
    const auto actual = gradients();
    for (size_t i = 0; i < actual.size(); ++i) {
      CHECK_THAT(actual[i], IsCloseTo(expected[i], {0, 1e-12}));
    }
  }
}

TEST_CASE("Slopes are the paper's") {
  const auto powers = [](const std::vector<double>& exponents) {
    return torch::exp2(-torch::tensor(exponents, torch::kDouble))
        .to(torch::kFloat);
  };
  CHECK_THAT(F::alibi_slopes(8), IsEqualTo(powers({1, 2, 3, 4, 5, 6, 7, 8})));
  CHECK_THAT(F::alibi_slopes(1), IsEqualTo(powers({8})));
  CHECK_THAT(F::alibi_slopes(3), IsEqualTo(powers({4, 8, 2})));
  CHECK_THAT(
      F::alibi_slopes(12),
      IsEqualTo(powers({1, 2, 3, 4, 5, 6, 7, 8, 0.5, 1.5, 2.5, 3.5})));
  THROWS_WITH(F::alibi_slopes(0), "expected num_heads > 0, but got 0");
}

TEST_CASE("A module caps its scores and takes distances from them") {
  torch::manual_seed(5);
  const auto kernel = GENERATE(Kernel::kAuto, Kernel::kReference);
  const auto softcap = GENERATE(std::optional<double>(), std::optional(0.75));
  const bool alibi = GENERATE(false, true);
  CAPTURE(kernel, softcap.value_or(0), alibi);
  MultiHeadAttention module(MultiHeadAttentionOptions(12, 16, 40, 4)
                                .num_kv_heads(2)
                                .softcap(softcap)
                                .alibi(alibi)
                                .kernel(kernel));
  module->to(torch::kDouble);
  module->eval();
  const torch::NoGradGuard no_grad;
  const auto x = 3 * torch::randn({2, 24, 12}, torch::kDouble);
  const auto output = module->forward(x);

  SECTION("as functional attention does") {
    const auto heads = [&](const torch::Tensor& projected) {
      return projected.unflatten(-1, {-1, 4}).transpose(1, 2);
    };
    auto options = Options().causal(true).enable_gqa(true).softcap(softcap);
    if (alibi) {
      options.alibi_slopes(F::alibi_slopes(4));
    }
    const auto context = F::scaled_dot_product_attention(
        heads(module->W_query->forward(x)),
        heads(module->W_key->forward(x)),
        heads(module->W_value->forward(x)),
        options);
    CHECK_THAT(
        output,
        IsCloseTo(
            module->out_proj->forward(context.transpose(1, 2).flatten(2))));
    CHECK_THAT(std::get<0>(module->forward_with_weights(x)), IsCloseTo(output));
  }
  SECTION("with a cache as without") {
    auto cache = module->make_cache(2);
    CHECK_THAT(
        decode_in_chunks(module, cache, x, {10, 3, 1}), IsCloseTo(output));
  }
  SECTION("which changes the output") {
    MultiHeadAttention plain(
        MultiHeadAttentionOptions(12, 16, 40, 4).num_kv_heads(2));
    plain->to(torch::kDouble);
    for (const auto& item : module->named_parameters()) {
      plain->named_parameters()[item.key()].copy_(item.value());
    }
    CHECK(
        plain->forward(x).allclose(output, 1e-3, 1e-3) == (!softcap && !alibi));
    // A small one as well, whose kernel knows neither.
    const auto few = x.slice(0, 0, 1).slice(1, 0, 3);
    CHECK(
        plain->forward(few).allclose(module->forward(few), 1e-3, 1e-3) ==
        (!softcap && !alibi));
  }
}

TEST_CASE("Caps and slopes that do not fit are refused by name") {
  const auto q = torch::randn({2, 4, 3, 8});
  const auto attend = [&](const Options& options) {
    return F::scaled_dot_product_attention(q, q, q, options);
  };
  for (const auto softcap : {0.0, -1.0, 1e300, std::nan("")}) {
    THROWS_WITH(
        attend(Options().softcap(softcap)),
        "expected a softcap in [1e-6, 1e6]");
    THROWS_WITH(
        MultiHeadAttention(
            MultiHeadAttentionOptions(4, 4, 4, 2).softcap(softcap)),
        "MultiHeadAttention: expected a softcap in [1e-6, 1e6]");
  }
  THROWS_WITH(
      attend(Options().alibi_slopes(torch::ones({3}))),
      "alibi_slopes of shape (H) = [4], but got Float of shape [3]");
  THROWS_WITH(
      attend(Options().alibi_slopes(torch::ones({4}, torch::kLong))),
      "but got Long");
  THROWS_WITH(
      F::scaled_dot_product_attention(
          q[0], q[0], q[0], Options().alibi_slopes(torch::ones({4}))),
      "expected, with alibi_slopes, a query of shape (B, H, T, D)");
}

} // namespace score_changes_test
