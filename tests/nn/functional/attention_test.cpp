#include <support/attention_by_loops.h>
#include <support/close.h>
#include <support/test.h>

#include <limits>

namespace attention_test {

using namespace torch_attention;
using namespace torch_attention::testing;
namespace F = torch_attention::functional;

using Options = F::ScaledDotProductAttentionFuncOptions;

namespace {

constexpr auto kKernels = {Kernel::kReference, Kernel::kFused, Kernel::kAuto};

/// Random query, key and value (..., T, D), (..., S, D), (..., S, D).
struct Inputs {
  torch::Tensor query;
  torch::Tensor key;
  torch::Tensor value;

  Inputs(
      std::vector<int64_t> leading,
      int64_t T,
      int64_t S,
      int64_t D,
      torch::ScalarType dtype = torch::kFloat) {
    const auto draw = [&](int64_t tokens) {
      auto sizes = leading;
      sizes.push_back(tokens);
      sizes.push_back(D);
      return torch::randn(sizes, dtype);
    };
    query = draw(T);
    key = draw(S);
    value = draw(S);
  }

  torch::Tensor attend(const Options& options) const {
    return F::scaled_dot_product_attention(query, key, value, options);
  }
};

/// The loops' answer for `inputs`, hidden (..., T, S) broadcast.
torch::Tensor expected_of(
    const Inputs& inputs,
    const torch::Tensor& hidden,
    double scale) {
  const auto T = inputs.query.size(-2);
  const auto S = inputs.key.size(-2);
  const auto D = inputs.query.size(-1);
  auto sizes = inputs.query.sizes().vec();
  sizes.back() = S;
  return attention_by_loops(
             inputs.query.reshape({-1, T, D}),
             inputs.key.reshape({-1, S, D}),
             inputs.value.reshape({-1, S, D}),
             hidden.expand(sizes).reshape({-1, T, S}),
             scale)
      .reshape(inputs.query.sizes())
      .to(inputs.query.scalar_type());
}

torch::Tensor nothing_hidden() {
  return torch::zeros({1, 1}, torch::kBool);
}

} // namespace

TEST_CASE("Attention equals plain loops in double") {
  torch::manual_seed(1);
  const auto kernel = GENERATE(values(kKernels));
  const auto dtype = GENERATE(torch::kFloat, torch::kDouble);
  struct Shape {
    std::vector<int64_t> leading;
    int64_t T, S, D;
  };
  const auto shape = GENERATE(
      Shape{{}, 5, 5, 3},
      Shape{{2}, 1, 1, 1},
      Shape{{3}, 7, 7, 16},
      Shape{{2, 4}, 33, 33, 8},
      Shape{{2, 3}, 5, 9, 4},
      Shape{{2, 3}, 1, 65, 64},
      Shape{{2, 2, 3}, 6, 6, 5},
      Shape{{1, 2}, 130, 130, 7});
  CAPTURE(kernel, dtype, shape.leading, shape.T, shape.S, shape.D);
  const Inputs inputs(shape.leading, shape.T, shape.S, shape.D, dtype);
  const auto default_scale = 1 / std::sqrt(static_cast<double>(shape.D));
  const auto causal = F::causal_mask(shape.T, shape.S);

  SECTION("without a mask") {
    CHECK_THAT(
        inputs.attend(Options().kernel(kernel)),
        IsCloseTo(expected_of(inputs, nothing_hidden(), default_scale)));
  }
  SECTION("causal, the queries being the last of the positions") {
    CHECK_THAT(
        inputs.attend(Options().kernel(kernel).causal(true)),
        IsCloseTo(expected_of(inputs, causal, default_scale)));
  }
  SECTION("with a scale, which may be negative or zero") {
    const auto scale = GENERATE(0.3, -0.7, 0.0);
    CHECK_THAT(
        inputs.attend(Options().kernel(kernel).causal(true).scale(scale)),
        IsCloseTo(expected_of(inputs, causal, scale)));
  }
  SECTION("with a bool mask, alone and with the causal one") {
    const auto mask = torch::rand({shape.T, shape.S}) < 0.4;
    CHECK_THAT(
        inputs.attend(Options().kernel(kernel).mask(mask)),
        IsCloseTo(expected_of(inputs, mask, default_scale)));
    CHECK_THAT(
        inputs.attend(Options().kernel(kernel).mask(mask).causal(true)),
        IsCloseTo(expected_of(inputs, mask.logical_or(causal), default_scale)));
  }
  SECTION("with a bias of 0 and -inf, which is a mask") {
    const auto mask = torch::rand({shape.T, shape.S}) < 0.4;
    const auto bias =
        torch::zeros({shape.T, shape.S}, dtype)
            .masked_fill(mask, -std::numeric_limits<double>::infinity());
    CHECK_THAT(
        inputs.attend(Options().kernel(kernel).bias(bias)),
        IsCloseTo(expected_of(inputs, mask, default_scale)));
    CHECK_THAT(
        inputs.attend(Options().kernel(kernel).bias(bias).causal(true)),
        IsCloseTo(expected_of(inputs, mask.logical_or(causal), default_scale)));
  }
}

TEST_CASE("A bias is added to the scaled scores") {
  torch::manual_seed(2);
  const auto kernel = GENERATE(values(kKernels));
  CAPTURE(kernel);
  const Inputs inputs({2, 3}, 5, 6, 4);
  const auto bias = torch::randn({3, 5, 6});
  const auto scores = F::attention_scores(inputs.query, inputs.key);
  CHECK_THAT(
      inputs.attend(Options().kernel(kernel).bias(bias)),
      IsCloseTo(
          torch::matmul(torch::softmax(scores / 2 + bias, -1), inputs.value)));
}

TEST_CASE("A mask or a bias may have any dimensions that broadcast") {
  torch::manual_seed(4);
  const auto kernel = GENERATE(values(kKernels));
  const auto rank = GENERATE(2, 3, 4, 5, 6);
  const std::vector<int64_t> leading(rank - 2, 2);
  const Inputs inputs(leading, 3, 5, 4);
  const auto scores = F::attention_scores(inputs.query, inputs.key) / 2;
  for (int64_t dims = 0; dims <= rank; ++dims) {
    auto sizes = scores.sizes().slice(rank - dims).vec();
    // Some of them are 1.
    for (auto& size : sizes) {
      size = torch::rand({}).item<float>() < 0.3F ? 1 : size;
    }
    CAPTURE(kernel, rank, sizes);
    const auto bias = torch::randn(sizes).requires_grad_();
    const auto expected =
        torch::matmul(torch::softmax(scores + bias, -1), inputs.value);
    const auto output = inputs.attend(Options().kernel(kernel).bias(bias));
    CHECK_THAT(output.detach(), IsCloseTo(expected.detach()));
    const auto gradient = [&](const torch::Tensor& y) {
      return torch::autograd::grad({y.sin().sum()}, {bias})[0];
    };
    CHECK_THAT(gradient(output), IsCloseTo(gradient(expected), {1e-5, 1e-5}));
    const auto mask = torch::rand(sizes) < 0.3;
    CHECK_THAT(
        inputs.attend(Options().kernel(kernel).mask(mask)),
        IsCloseTo(expected_of(inputs, mask, 0.5)));
  }
}

TEST_CASE("A query whose keys are all hidden gives zeros") {
  torch::manual_seed(3);
  const auto kernel = GENERATE(values(kKernels));
  CAPTURE(kernel);
  Inputs inputs({2, 3}, 4, 5, 8);
  auto hidden = torch::zeros({2, 1, 4, 5}, torch::kBool);
  hidden.index_put_({0, 0, 2}, true);
  const auto check = [&](const Options& options) {
    for (auto* x : {&inputs.query, &inputs.key, &inputs.value}) {
      *x = x->detach().requires_grad_();
    }
    const auto output = inputs.attend(options);
    CHECK(output.index({0, torch::indexing::Slice(), 2})
              .eq(0)
              .all()
              .item<bool>());
    CHECK_THAT(
        output.detach(),
        IsCloseTo(expected_of(inputs, hidden, 1 / std::sqrt(8.0))));
    output.sum().backward();
    for (const auto& x : {inputs.query, inputs.key, inputs.value}) {
      CHECK(x.grad().isfinite().all().item<bool>());
    }
    CHECK(inputs.query.grad()
              .index({0, torch::indexing::Slice(), 2})
              .eq(0)
              .all()
              .item<bool>());
  };
  SECTION("by a mask") {
    check(Options().kernel(kernel).mask(hidden));
  }
  SECTION("by a bias of -inf") {
    check(Options().kernel(kernel).bias(
        torch::zeros({2, 1, 4, 5})
            .masked_fill(hidden, -std::numeric_limits<double>::infinity())));
  }
}

TEST_CASE("More queries than keys: the first see no key and give zeros") {
  const auto kernel = GENERATE(values(kKernels));
  CAPTURE(kernel);
  torch::manual_seed(4);
  const Inputs inputs({2, 2}, 5, 3, 4);
  const auto output = inputs.attend(Options().kernel(kernel).causal(true));
  CHECK_THAT(output, IsCloseTo(expected_of(inputs, F::causal_mask(5, 3), 0.5)));
  CHECK(output.slice(2, 0, 2).eq(0).all().item<bool>());
}

TEST_CASE("Empty tensors give empty or zero results") {
  const auto kernel = GENERATE(values(kKernels));
  const auto causal = GENERATE(false, true);
  CAPTURE(kernel, causal);
  const auto options = Options().kernel(kernel).causal(causal);
  CHECK_THAT(Inputs({0, 2}, 3, 3, 4).attend(options), HasShape({0, 2, 3, 4}));
  CHECK_THAT(Inputs({2, 2}, 0, 0, 4).attend(options), HasShape({2, 2, 0, 4}));
  CHECK_THAT(Inputs({2, 2}, 0, 3, 4).attend(options), HasShape({2, 2, 0, 4}));
  CHECK_THAT(
      Inputs({2, 2}, 3, 0, 4).attend(options),
      IsEqualTo(torch::zeros({2, 2, 3, 4})));
}

TEST_CASE("Leading dimensions broadcast, and values may have another size") {
  torch::manual_seed(5);
  const auto kernel = GENERATE(values(kKernels));
  CAPTURE(kernel);
  const auto query = torch::randn({2, 3, 4, 8});
  const auto key = torch::randn({3, 5, 8});
  const auto value = torch::randn({2, 1, 5, 6});
  const auto output = F::scaled_dot_product_attention(
      query, key, value, Options().kernel(kernel));
  const auto expected = torch::matmul(
      torch::softmax(
          torch::matmul(query, key.transpose(-2, -1)) / std::sqrt(8.0), -1),
      value);
  CHECK_THAT(output, IsCloseTo(expected));
}

TEST_CASE("Weights are returned on request") {
  torch::manual_seed(6);
  const Inputs inputs({2, 3}, 4, 4, 8);
  const auto options = Options().causal(true);
  const auto [output, weights] = F::scaled_dot_product_attention_with_weights(
      inputs.query, inputs.key, inputs.value, options);
  CHECK_THAT(
      output,
      IsEqualTo(
          inputs.attend(Options().causal(true).kernel(Kernel::kReference))));
  CHECK_THAT(weights.sum(-1), IsCloseTo(torch::ones({2, 3, 4})));
  CHECK(weights.triu(1).eq(0).all().item<bool>());
  CHECK_THAT(
      F::attention_weights(
          F::attention_scores(inputs.query, inputs.key), 8, options),
      IsEqualTo(weights));
  THROWS_WITH(
      F::scaled_dot_product_attention_with_weights(
          inputs.query,
          inputs.key,
          inputs.value,
          Options().kernel(Kernel::kFused)),
      "Kernel::kFused never forms the weights");
}

TEST_CASE("attention_weights leaves the scores as they are") {
  const auto scores = torch::ones({2, 3, 3});
  F::attention_weights(scores, 4, Options().causal(true));
  CHECK_THAT(scores, IsEqualTo(torch::ones({2, 3, 3})));
}

TEST_CASE("Dropout scales what it keeps, in training only") {
  torch::manual_seed(7);
  const auto kernel = GENERATE(values(kKernels));
  CAPTURE(kernel);
  // Equal scores and values of one: every weight is 1 / S, and an output is
  // the sum of its weights, 1 on average.
  const auto zeros = torch::zeros({4, 8, 64, 16});
  const auto ones = torch::ones({4, 8, 64, 16});
  const auto run = [&](double dropout, bool training) {
    return F::scaled_dot_product_attention(
        zeros,
        zeros,
        ones,
        Options().kernel(kernel).dropout(dropout).training(training));
  };
  CHECK_THAT(run(0.5, false), IsCloseTo(ones));
  CHECK_THAT(run(0.0, true), IsCloseTo(ones));
  CHECK_THAT(run(1.0, true), IsEqualTo(torch::zeros_like(ones)));
  const auto dropped = run(0.25, true).select(-1, 0);
  // 2048 outputs of 64 weights each: keeps 0.75, so the mean's standard
  // deviation is sqrt(0.25 / 0.75 / 64 / 2048) = 0.0016.
  CHECK(dropped.mean().item<double>() == Approx(1.0).margin(0.01));
  CHECK(
      dropped.std().item<double>() ==
      Approx(std::sqrt(1 / 3.0 / 64)).epsilon(0.1));
}

TEST_CASE("softmax_naive and attention_scores take any dimension") {
  const auto x = torch::tensor({{1.0, 2.0}, {3.0, 4.0}});
  CHECK_THAT(F::softmax_naive(x), IsCloseTo(torch::softmax(x, 0)));
  CHECK_THAT(F::softmax_naive(x, 1), IsCloseTo(torch::softmax(x, 1)));
  CHECK_THAT(
      F::attention_scores(x[0], x), IsEqualTo(torch::tensor({5.0, 11.0})));
  THROWS_WITH(
      F::attention_scores(torch::ones({2, 3}), x),
      "attention_scores: expected query (..., T, D) and key (..., S, D), but "
      "got query [2, 3], key [2, 2]");
}

TEST_CASE("Arguments that do not fit are refused by name") {
  const auto q = torch::randn({2, 3, 4, 8});
  const auto attend = [&](const torch::Tensor& query,
                          const torch::Tensor& key,
                          const torch::Tensor& value,
                          const Options& options = {}) {
    return F::scaled_dot_product_attention(query, key, value, options);
  };
  THROWS_WITH(attend({}, q, q), "the query is undefined");
  THROWS_WITH(
      attend(torch::ones({3}), q, q),
      "expected a query of shape (..., tokens, head_dim), but got [3]");
  THROWS_WITH(
      attend(q, q.slice(-1, 0, 4), q),
      "expected query and key of the same head_dim > 0, but got query [2, 3, "
      "4, 8], key [2, 3, 4, 4]");
  THROWS_WITH(
      attend(q, q, q.slice(-2, 0, 2)),
      "expected as many keys as values, but got key [2, 3, 4, 8], value [2, 3, "
      "2, 8]");
  THROWS_WITH(
      attend(q, q.slice(1, 0, 2), q.slice(1, 0, 2)),
      "expected leading dimensions that broadcast");
  THROWS_WITH(
      attend(q.to(torch::kLong), q, q),
      "expected a floating-point query, but got Long");
  THROWS_WITH(
      attend(q, q.to(torch::kDouble), q),
      "expected query, key and value of one dtype on one device, but got query "
      "Float on cpu, key Double on cpu");
  THROWS_WITH(
      attend(q, q, q, Options().mask(torch::zeros({5, 4}, torch::kBool))),
      "expected a mask that broadcasts to the scores [2, 3, 4, 4], but got [5, "
      "4]");
  THROWS_WITH(
      attend(
          q, q, q, Options().mask(torch::zeros({1, 1, 1, 4, 4}, torch::kBool))),
      "expected a mask that broadcasts to the scores [2, 3, 4, 4]");
  THROWS_WITH(
      attend(q, q, q, Options().mask(torch::ones({4, 4}))),
      "expected a bool mask (true hides), but got Float; convert it with "
      ".to(torch::kBool)");
  THROWS_WITH(
      attend(q, q, q, Options().bias(torch::zeros({4, 4}, torch::kBool))),
      "expected a floating-point bias, but got Bool");
  THROWS_WITH(
      attend(q, q, q, Options().bias(torch::zeros({3, 3}))),
      "expected a bias that broadcasts to the scores [2, 3, 4, 4], but got [3, "
      "3]");
  THROWS_WITH(
      attend(q, q, q, Options().dropout(1.5)),
      "expected dropout in [0, 1], but got 1.5");
  THROWS_WITH(
      attend(q, q, q, Options().scale(std::nan(""))),
      "expected a finite scale, but got nan");
}

} // namespace attention_test
