#include <support/close.h>
#include <support/test.h>

#include <cmath>
#include <memory>
#include <optional>
#include <vector>

namespace rotary_test {

using namespace torch_attention;
using namespace torch_attention::testing;

namespace {

constexpr auto kPairings = {
    RotaryPairing::kHalves,
    RotaryPairing::kInterleaved};

/// Rotary position embedding of x (N, T, D) in plain loops, with the angles of
/// `transformers`: products of two numbers of float32, rounded to it.
torch::Tensor rotary_by_loops(
    const torch::Tensor& x,
    const std::vector<int64_t>& positions,
    RotaryPairing pairing,
    double theta,
    int64_t dim) {
  auto result = x.detach().to(torch::kDouble).clone();
  auto a = result.accessor<double, 3>();
  for (int64_t n = 0; n < x.size(0); ++n) {
    for (int64_t t = 0; t < x.size(1); ++t) {
      for (int64_t i = 0; i < dim / 2; ++i) {
        const auto exponent =
            static_cast<float>(2 * i) / static_cast<float>(dim);
        const auto power = static_cast<float>(std::pow(theta, exponent));
        const auto position =
            static_cast<float>(positions[static_cast<size_t>(t)]);
        const double angle = position * (1 / power);
        const bool halves = pairing == RotaryPairing::kHalves;
        auto& first = a[n][t][halves ? i : 2 * i];
        auto& second = a[n][t][halves ? i + dim / 2 : 2 * i + 1];
        const auto old = first;
        first = old * std::cos(angle) - second * std::sin(angle);
        second = second * std::cos(angle) + old * std::sin(angle);
      }
    }
  }
  return result;
}

} // namespace

TEST_CASE("Rotary embedding equals plain loops in double") {
  const auto pairing = GENERATE(values(kPairings));
  const auto theta = GENERATE(10000.0, 500000.0);
  const int64_t dim = GENERATE(2, 6, 8);
  CAPTURE(pairing, theta, dim);
  torch::manual_seed(1);
  const auto x = torch::randn({6, 5, 8});
  const std::vector<int64_t> positions = {0, 1, 7, 2, 40};
  const auto expected = rotary_by_loops(x, positions, pairing, theta, dim);
  const auto options = RotaryOptions().theta(theta).dim(dim).pairing(pairing);
  const auto at = torch::tensor(positions);

  SECTION("in float32") {
    CHECK_THAT(
        functional::rotary_embedding(x, at, options),
        IsCloseTo(expected.to(torch::kFloat), Tolerance(1e-6, 1e-6)));
  }
  SECTION("in double, with tables of float32") {
    CHECK_THAT(
        functional::rotary_embedding(x.to(torch::kDouble), at, options),
        IsCloseTo(expected, Tolerance(1e-6, 1e-6)));
  }
  SECTION("in half precision, rounded once") {
    const auto dtype = GENERATE(torch::kBFloat16, torch::kHalf);
    const auto rounded = x.to(dtype);
    CHECK_THAT(
        functional::rotary_embedding(rounded, at, options),
        IsEqualTo(
            functional::rotary_embedding(rounded.to(torch::kFloat), at, options)
                .to(dtype)));
  }
  SECTION("for any leading dimensions and strides") {
    const auto strided =
        x.view({2, 3, 5, 8}).transpose(1, 2).contiguous().transpose(1, 2);
    CHECK_THAT(
        functional::rotary_embedding(strided, at, options),
        IsEqualTo(
            functional::rotary_embedding(x, at, options).view({2, 3, 5, 8})));
    CHECK_THAT(
        functional::rotary_embedding(x[0], at, options),
        IsEqualTo(functional::rotary_embedding(x, at, options)[0]));
  }
}

// The functions LlamaRotaryEmbedding and apply_rotary_pos_emb of transformers
// in the operations of torch.
TEST_CASE("Rotary embedding equals transformers' Llama at long contexts") {
  torch::manual_seed(2);
  constexpr int64_t kDim = 64;
  const auto theta = GENERATE(10000.0, 500000.0);
  const auto factor = GENERATE(1.0, 4.0);
  CAPTURE(theta, factor);
  const auto x = torch::randn({1, 2, 50, kDim});
  const auto positions = torch::arange(0, 100000, 2000);
  const auto inv_freq =
      torch::pow(
          theta,
          torch::arange(0, kDim, 2, torch::kLong).to(torch::kFloat) /
              static_cast<double>(kDim))
          .reciprocal() /
      factor;
  const auto freqs = torch::matmul(
      positions.to(torch::kFloat).unsqueeze(1), inv_freq.unsqueeze(0));
  const auto emb = torch::cat({freqs, freqs}, -1);
  const auto rotated_half =
      torch::cat({-x.slice(-1, kDim / 2), x.slice(-1, 0, kDim / 2)}, -1);
  CHECK_THAT(
      functional::rotary_embedding(
          x, positions, RotaryOptions().theta(theta).factor(factor)),
      IsCloseTo(
          x * emb.cos() + rotated_half * emb.sin(), Tolerance(1e-6, 1e-6)));
}

TEST_CASE("Scores of rotated queries and keys depend on the distance only") {
  const auto pairing = GENERATE(values(kPairings));
  CAPTURE(pairing);
  torch::manual_seed(3);
  const auto options = RotaryOptions().pairing(pairing);
  const auto query = torch::randn({1, 4, 1, 16}, torch::kDouble);
  const auto key = torch::randn({1, 4, 1, 16}, torch::kDouble);
  const auto scores = [&](int64_t at_query, int64_t at_key) {
    const auto rotated = [&](const torch::Tensor& x, int64_t position) {
      return functional::rotary_embedding(
          x, torch::tensor({position}, torch::kLong), options);
    };
    return (rotated(query, at_query) * rotated(key, at_key)).sum(-1);
  };
  for (const int64_t shift : {1, 10, 100}) {
    CAPTURE(shift);
    CHECK_THAT(
        scores(7 + shift, 3 + shift),
        IsCloseTo(scores(7, 3), Tolerance(1e-4, 1e-4)));
  }
  CHECK_THAT(scores(3, 3), IsCloseTo((query * key).sum(-1), {1e-6, 1e-6}));
  // Or the test says nothing.
  CHECK_FALSE(scores(8, 3).allclose(scores(7, 3), 1e-2, 1e-2));
}

TEST_CASE("Each sequence may have positions of its own") {
  const auto pairing = GENERATE(values(kPairings));
  const auto options = RotaryOptions().pairing(pairing).dim(4);
  torch::manual_seed(4);
  const auto x = torch::randn({2, 3, 4, 6});
  const auto positions = torch::tensor({{0, 1, 2, 3}, {9, 10, 30, 11}});
  const auto rotated = functional::rotary_embedding(x, positions, options);
  for (int64_t b = 0; b < 2; ++b) {
    CHECK_THAT(
        rotated[b],
        IsEqualTo(functional::rotary_embedding(x[b], positions[b], options)));
  }
  CHECK_THAT(
      functional::rotary_embedding(x.select(1, 0), positions, options),
      IsEqualTo(rotated.select(1, 0)));
}

TEST_CASE("Position 0 and the part that is not rotated stay as they are") {
  const auto pairing = GENERATE(values(kPairings));
  torch::manual_seed(5);
  const auto x = torch::randn({2, 3, 4, 10});
  const auto rotated = functional::rotary_embedding(
      x, torch::arange(4), RotaryOptions().pairing(pairing).dim(6));
  CHECK_THAT(rotated.select(2, 0), IsCloseTo(x.select(2, 0), {0, 0}));
  CHECK_THAT(rotated.slice(-1, 6), IsEqualTo(x.slice(-1, 6).contiguous()));
  CHECK_FALSE(rotated.slice(-1, 0, 6).equal(x.slice(-1, 0, 6)));
}

TEST_CASE("The factor of rotary embedding divides the positions") {
  torch::manual_seed(6);
  const auto x = torch::randn({1, 1, 4, 8});
  CHECK_THAT(
      functional::rotary_embedding(
          x, torch::arange(0, 16, 4), RotaryOptions().factor(4)),
      IsCloseTo(functional::rotary_embedding(x, torch::arange(4))));
}

// `inv_freq` and `attention_scaling` that LlamaRotaryEmbedding of Python's
// transformers 5.23 has for head_dim 16 and these `rope_parameters`.
TEST_CASE("Rotary scaling is transformers'") {
  struct Row {
    const char* name;
    RotaryOptions options;
    std::vector<double> frequencies;
    double amplitude;
  };
  const auto row = GENERATE(values<Row>({
      {"llama3 of Llama 3.1",
       RotaryOptions()
           .theta(500000)
           .factor(8)
           .scaling(RotaryScaling::kLlama3)
           .original_context_length(8192),
       {1.0,
        0.193922758102417,
        0.03760603070259094,
        0.00729266507551074,
        0.0005248460220173001,
        3.428102354519069e-05,
        6.647869668086059e-06,
        1.289173155782919e-06},
       1},
      {"yarn",
       RotaryOptions()
           .factor(4)
           .scaling(RotaryScaling::kYarn)
           .original_context_length(4096),
       {1.0,
        0.3162277638912201,
        0.10000000149011612,
        0.025693506002426147,
        0.00624999962747097,
        0.0013834965648129582,
        0.0002500000118743628,
        7.905694656074047e-05},
       1.138629436111989},
      {"yarn of Qwen 2.5",
       RotaryOptions()
           .theta(1000000)
           .factor(4)
           .scaling(RotaryScaling::kYarn)
           .original_context_length(32768),
       {1.0,
        0.17782793939113617,
        0.03162277862429619,
        0.004217559937387705,
        0.0005000000237487257,
        4.4456985051510856e-05,
        7.905693564680405e-06,
        1.405853367941745e-06},
       1.138629436111989},
  }));
  CAPTURE(row.name);
  const int64_t position = GENERATE(1, 1000, 100000);
  // Each pair (1, 0) becomes cosine and sine.
  const auto x = torch::cat({torch::ones({1, 8}), torch::zeros({1, 8})}, -1);
  const auto angles = (torch::tensor(row.frequencies, torch::kFloat) *
                       static_cast<double>(position))
                          .to(torch::kDouble);
  CHECK_THAT(
      functional::rotary_embedding(x, torch::tensor({position}), row.options),
      IsCloseTo(
          (row.amplitude * torch::cat({angles.cos(), angles.sin()}))
              .to(torch::kFloat)
              .unsqueeze(0),
          // A last bit of a frequency, so many tokens on.
          Tolerance(0, 1e-6 + 1.2e-7 * static_cast<double>(position))));
}

TEST_CASE("Rotary scaling takes fast_turns and slow_turns") {
  // Pairs turn 16 / 2 pi = 2.5 times, and 0.25.
  const auto options = RotaryOptions()
                           .theta(100)
                           .factor(2)
                           .scaling(RotaryScaling::kLlama3)
                           .original_context_length(16);
  const auto x = torch::tensor({1.0, 1.0, 0.0, 0.0}).unsqueeze(0);
  const auto cosines = [&](const RotaryOptions& each) {
    return functional::rotary_embedding(x, torch::tensor({3}), each)
        .slice(-1, 0, 2);
  };
  const auto expected = [](double first, double second) {
    return torch::tensor({3 * first, 3 * second}).cos().unsqueeze(0);
  };
  auto all_fast = options;
  all_fast.fast_turns(0.2).slow_turns(0.1);
  CHECK_THAT(cosines(all_fast), IsCloseTo(expected(1, 0.1)));
  auto all_slow = options;
  all_slow.fast_turns(10).slow_turns(5);
  CHECK_THAT(cosines(all_slow), IsCloseTo(expected(0.5, 0.05)));
  auto one_of_each = options;
  one_of_each.fast_turns(2);
  CHECK_THAT(cosines(one_of_each), IsCloseTo(expected(1, 0.05)));
  auto twice = options;
  twice.scaling(RotaryScaling::kYarn).attention_factor(2);
  CHECK(cosines(twice).abs().max().item<double>() > 1.5);
}

TEST_CASE("Rotary scaling that says too little is refused") {
  const auto x = torch::randn({2, 8});
  const auto rotated = [&](const RotaryOptions& options) {
    return functional::rotary_embedding(x, torch::arange(2), options);
  };
  const auto scaling = GENERATE(RotaryScaling::kLlama3, RotaryScaling::kYarn);
  const auto options = RotaryOptions().scaling(scaling).factor(2);
  THROWS_WITH(
      rotated(options),
      "rotary_embedding: expected original_context_length > 0 for rotary "
      "scaling " +
          c10::str(scaling) + ", but got none");
  auto whole = options;
  whole.original_context_length(16);
  auto turns = whole;
  THROWS_WITH(rotated(turns.fast_turns(0.5)), "fast_turns > slow_turns > 0");
  auto slow = whole;
  THROWS_WITH(rotated(slow.slow_turns(0)), "fast_turns > slow_turns > 0");
  auto yarn = whole;
  yarn.scaling(RotaryScaling::kYarn);
  auto loud = yarn;
  THROWS_WITH(rotated(loud.attention_factor(0)), "attention_factor > 0");
  THROWS_WITH(rotated(yarn.theta(1)), "expected theta > 1");
  auto linear = whole;
  linear.scaling(RotaryScaling::kLinear);
  THROWS_WITH(
      rotated(linear), "rotary scaling linear has no original_context_length");
  auto llama = whole;
  llama.scaling(RotaryScaling::kLlama3).attention_factor(2);
  THROWS_WITH(rotated(llama), "rotary scaling llama3 has no attention_factor");
}

TEST_CASE("The gradient of rotary embedding is the angles back") {
  const auto pairing = GENERATE(values(kPairings));
  torch::manual_seed(7);
  const auto options = RotaryOptions().pairing(pairing).dim(6);
  auto x = torch::randn({2, 3, 4, 8}, torch::kDouble).requires_grad_();
  const auto weights = torch::randn({2, 3, 4, 8}, torch::kDouble);
  const auto gradient = torch::autograd::grad(
      {(functional::rotary_embedding(x, torch::arange(4), options) * weights)
           .sum()},
      {x})[0];
  CHECK_THAT(
      gradient,
      IsCloseTo(
          functional::rotary_embedding(weights, -torch::arange(4), options),
          Tolerance(1e-6, 1e-6)));
}

TEST_CASE("What rotary embedding cannot rotate is refused") {
  const auto x = torch::rand({2, 3, 4, 8});
  const auto at = torch::arange(4);
  using functional::rotary_embedding;
  THROWS_WITH(
      rotary_embedding(x, torch::arange(5)),
      "rotary_embedding: expected positions (T) for x (..., T, D), or (B, T) "
      "for x (B, ..., T, D), but got positions [5], x [2, 3, 4, 8]");
  THROWS_WITH(
      rotary_embedding(x, at.expand({3, 4})), "but got positions [3, 4]");
  THROWS_WITH(
      rotary_embedding(x, at.to(torch::kFloat)),
      "expected positions of an integer dtype, but got Float");
  CHECK_THAT(
      rotary_embedding(x, at.to(torch::kInt)),
      IsEqualTo(rotary_embedding(x, at)));
  THROWS_WITH(
      rotary_embedding(x, at.to(torch::kMeta)),
      "expected positions on cpu, where x is, but got meta");
  THROWS_WITH(
      rotary_embedding(x.to(torch::kLong), at), "expected floating-point x");
  THROWS_WITH(rotary_embedding({}, at), "x is undefined");
  THROWS_WITH(rotary_embedding(x, {}), "positions are undefined");
  THROWS_WITH(
      rotary_embedding(x, at, RotaryOptions().dim(3)),
      "expected an even dim in [2, head_dim = 8] for rotary embedding, but got "
      "3");
  THROWS_WITH(rotary_embedding(x, at, RotaryOptions().dim(10)), "but got 10");
  THROWS_WITH(
      rotary_embedding(x, at, RotaryOptions().theta(0)),
      "expected a finite theta > 0");
  THROWS_WITH(
      rotary_embedding(x, at, RotaryOptions().factor(-1)),
      "expected a finite factor > 0");
}

namespace {

/// Compares with a module of projections, rotary embedding and attention.
void check_rotated(MultiHeadAttention& attention, const torch::Tensor& x) {
  const auto kernel = GENERATE(Kernel::kReference, Kernel::kAuto);
  attention->options.kernel(kernel);
  const auto heads = [&](torch::nn::Linear& linear, int64_t n) {
    return linear(x).view({2, 9, n, 8}).transpose(1, 2);
  };
  const auto rotated = [&](const torch::Tensor& projected) {
    return functional::rotary_embedding(
        projected, torch::arange(9), *attention->options.rotary());
  };
  const auto shared = [](const torch::Tensor& projected) {
    return projected.repeat_interleave(2, 1);
  };
  const auto context =
      functional::scaled_dot_product_attention(
          rotated(heads(attention->W_query, 4)),
          shared(rotated(heads(attention->W_key, 2))),
          shared(heads(attention->W_value, 2)),
          functional::ScaledDotProductAttentionFuncOptions().causal(true))
          .transpose(1, 2)
          .reshape({2, 9, 32});
  CHECK_THAT(attention(x), IsCloseTo(attention->out_proj(context)));
  CHECK_THAT(
      std::get<0>(attention->forward_with_weights(x)),
      IsCloseTo(attention->out_proj(context)));
}

} // namespace

TEST_CASE("A module with rotary embedding") {
  const auto pairing = GENERATE(values(kPairings));
  const auto options = MultiHeadAttentionOptions(12, 32, 20, 4)
                           .num_kv_heads(2)
                           .qkv_bias(true)
                           .rotary(RotaryOptions().pairing(pairing).dim(6));
  CAPTURE(pairing);
  torch::manual_seed(8);
  MultiHeadAttention attention(options);
  const auto x = torch::randn({2, 9, 12});

  SECTION("rotates queries and keys after the projection") {
    check_rotated(attention, x);
  }
  SECTION("has the keys of one without") {
    auto without = options;
    without.rotary(std::nullopt);
    MultiHeadAttention plain(without);
    const auto keys = [](const MultiHeadAttention& module) {
      auto names = module->named_parameters().keys();
      for (const auto& name : module->named_buffers().keys()) {
        names.push_back(name);
      }
      return names;
    };
    CHECK(keys(attention) == keys(plain));
  }
  SECTION("gives the same for longer inputs than before, and in a clone") {
    const auto before = attention(x.slice(1, 0, 2));
    const auto all = attention(x);
    CHECK_THAT(all.slice(1, 0, 2), IsCloseTo(before));
    const auto copy =
        std::dynamic_pointer_cast<MultiHeadAttentionImpl>(attention->clone());
    REQUIRE(copy != nullptr);
    CHECK_THAT(copy->forward(x), IsEqualTo(all));
  }
  SECTION("trains after a first pass in inference mode") {
    {
      const c10::InferenceMode inference;
      attention(x);
    }
    attention(x).sum().backward();
    CHECK(attention->W_query->weight.grad().abs().sum().item<float>() > 0);
    CHECK(attention->W_key->weight.grad().abs().sum().item<float>() > 0);
  }
  SECTION("computes in double as in float32") {
    const auto expected = attention(x).to(torch::kDouble);
    attention->to(torch::kDouble);
    CHECK_THAT(
        attention(x.to(torch::kDouble)),
        IsCloseTo(expected, Tolerance(1e-5, 1e-5)));
  }
  SECTION("prints it") {
    CHECK_THAT(
        c10::str(attention),
        ContainsText(c10::str(
            "rotary_theta=10000, rotary_dim=6, rotary_pairing=",
            pairing,
            ", rotary_factor=1")));
  }
}

TEST_CASE("Modules refuse rotary options that they cannot have") {
  THROWS_WITH(
      MultiHeadAttention(
          MultiHeadAttentionOptions(4, 6, 8, 2).rotary(RotaryOptions())),
      "MultiHeadAttention: expected an even dim in [2, head_dim = 3] for "
      "rotary embedding, but got 3");
}

} // namespace rotary_test
