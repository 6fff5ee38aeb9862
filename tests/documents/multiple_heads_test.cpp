// Document 003: a notebook on multiple heads, from a loop over heads to one
// batched product. Its classes score a query against the values (`q @ v`), so
// here `W_key` gets the weights of `value`; the layer `key` has no effect.

#include <support/close.h>
#include <support/linear.h>
#include <support/test.h>

#include <cmath>
#include <tuple>
#include <vector>

namespace multiple_heads_test {

using namespace torch_attention;
using namespace torch_attention::testing;
namespace F = torch_attention::functional;

namespace {

using SdpaOptions = F::ScaledDotProductAttentionFuncOptions;

// Sizes of the notebook's first half: batch, time, channel.
constexpr int64_t B = 2;
constexpr int64_t T = 4;
constexpr int64_t C = 8;

/// The notebook's `head()`. It divides by sqrt(C), which is sqrt(head_dim) as
/// long as a head has all C channels.
torch::Tensor head(
    const torch::Tensor& q,
    const torch::Tensor& k,
    const torch::Tensor& v,
    Kernel kernel = Kernel::kReference) {
  return F::scaled_dot_product_attention(
      q,
      k,
      v,
      SdpaOptions().causal(true).scale(1 / std::sqrt(C)).kernel(kernel));
}

/// (B, heads, T, C) -> (B, T, heads * C)
torch::Tensor combine_heads(const torch::Tensor& x) {
  return x.transpose(1, 2).reshape({x.size(0), x.size(2), -1});
}

/// The notebook's `multiple_head()`.
torch::Tensor multiple_head(
    const torch::Tensor& q,
    const torch::Tensor& k,
    const torch::Tensor& v,
    Kernel kernel) {
  return combine_heads(head(q, k, v, kernel));
}

/// All that the notebook draws under its seed, in its order.
struct Notebook {
  Notebook() {
    torch::manual_seed(123);
    for (auto* drawn : {&q, &k, &v, &q1, &q2, &k1, &k2, &v1, &v2}) {
      *drawn = torch::randn({B, T, C});
    }
    // Here the notebook sets B, T, C = 4, 8, 32 and head_size = 16.
    x = torch::randn({4, 8, 32});
    Q1 = torch::randn({32, 16});
    Q2 = torch::randn({32, 16});
  }

  torch::Tensor q, k, v;
  torch::Tensor q1, q2, k1, k2, v1, v2;
  torch::Tensor x, Q1, Q2;
};

/// The notebook's two heads one by one, (B, T, 2 C).
torch::Tensor heads_in_a_loop(const Notebook& drawn) {
  const auto head1 = head(drawn.q1, drawn.k1, drawn.v1);
  const auto head2 = head(drawn.q2, drawn.k2, drawn.v2);
  return torch::cat({head1, head2}, -1);
}

/// The notebook's scale, `head_size ** -0.5`.
double scale_of_head_size(int64_t head_size) {
  return 1 / std::sqrt(static_cast<double>(head_size));
}

} // namespace

TEST_CASE("Document 003's head() prints v[0] and out[0]", "[document_003]") {
  const Notebook drawn;
  const auto kernel =
      GENERATE(Kernel::kAuto, Kernel::kReference, Kernel::kFused);
  CAPTURE(kernel);
  const auto out = head(drawn.q, drawn.k, drawn.v, kernel);

  // clang-format off
  const auto printed_v = torch::tensor(
    {{-0.2582, -2.0407, -0.8016, -0.8183, -1.1820, -0.2877, -0.6043, 0.6002},
     {-1.4053, -0.5922, -0.2548, 1.1517, -0.0179, 0.4264, -0.7657, -0.0545},
     {-1.2743, 0.4513, -0.2280, 0.9224, 0.2056, -0.4970, 0.5821, 0.2053},
     {-0.3018, -0.6703, -0.6171, -0.8334, 0.4839, -0.1349, 0.2119, -0.8714}});
  const auto printed_out = torch::tensor(
    {{-0.2582, -2.0407, -0.8016, -0.8183, -1.1820, -0.2877, -0.6043, 0.6002},
     {-0.5085, -1.7247, -0.6823, -0.3885, -0.9280, -0.1319, -0.6395, 0.4574},
     {-1.2056, -0.2033, -0.3026, 0.8066, -0.0315, -0.1442, -0.0328, 0.1576},
     {-0.8482, -0.1931, -0.4107, 0.1548, 0.2657, -0.2460, 0.2601, -0.2675}});
  // clang-format on
  CHECK_THAT(drawn.v[0], IsPrinted(printed_v));
  CHECK_THAT(out[0], IsPrinted(printed_out));
  // Python's values of the other text of the batch.
  CHECK_THAT(
      out[1][3].slice(0, 0, 6),
      IsCloseTo(torch::tensor(
          {-0.579624, -0.817569, 0.825819, 0.455972, -0.345605, -0.692000})));

  SECTION("the first token attends to itself alone") {
    CHECK(torch::allclose(drawn.v[0][0], out[0][0]));
  }
  SECTION("the second token attends to two") {
    const auto scores = F::attention_scores(drawn.q, drawn.k);
    const auto weights =
        F::attention_weights(scores, C, SdpaOptions().causal(true));
    CHECK_THAT(
        weights[0][1], IsPrinted(torch::tensor({0.7818, 0.2182, 0.0, 0.0})));
    CHECK(torch::allclose(
        0.7818 * drawn.v[0][0] + 0.2182 * drawn.v[0][1],
        out[0][1],
        /*rtol=*/1e-5,
        /*atol=*/1e-2));
  }
  SECTION("without a scale of its own, attention divides by sqrt(C) as well") {
    CHECK_THAT(
        F::scaled_dot_product_attention(
            drawn.q,
            drawn.k,
            drawn.v,
            SdpaOptions().causal(true).kernel(kernel)),
        IsCloseTo(out));
  }
}

TEST_CASE(
    "Document 003's heads are the slices of their concatenation",
    "[document_003]") {
  const Notebook drawn;
  const auto heads = heads_in_a_loop(drawn);

  CHECK_THAT(heads, HasShape({B, T, 2 * C}));
  CHECK(torch::allclose(
      head(drawn.q1, drawn.k1, drawn.v1), heads.slice(-1, 0, C)));
  CHECK(
      torch::allclose(head(drawn.q2, drawn.k2, drawn.v2), heads.slice(-1, C)));
  CHECK_THAT(
      heads[1][3].slice(0, 0, 6),
      IsCloseTo(torch::tensor(
          {0.393114, 0.523307, 0.644418, -0.529708, 0.031500, 0.201276})));
  CHECK_THAT(
      heads[1][3].slice(0, -6),
      IsCloseTo(torch::tensor(
          {0.310027, 0.049756, -0.696173, 0.254467, 1.506530, -2.183001})));
}

TEST_CASE(
    "Document 003 multiplies two heads at once and prints the product",
    "[document_003]") {
  const auto a =
      torch::arange(B * T * C * 2).view({2, B, T, C}).to(torch::kFloat);
  const auto b = torch::ones({2, B, T, C});
  const auto c = F::attention_scores(a, b);
  const auto c0 = F::attention_scores(a[0], b[0]);
  const auto c1 = F::attention_scores(a[1], b[1]);
  const auto stacked = torch::stack({c0, c1});

  const auto printed = torch::tensor(
      {{{{28., 28., 28., 28.},
         {92., 92., 92., 92.},
         {156., 156., 156., 156.},
         {220., 220., 220., 220.}},
        {{284., 284., 284., 284.},
         {348., 348., 348., 348.},
         {412., 412., 412., 412.},
         {476., 476., 476., 476.}}},
       {{{540., 540., 540., 540.},
         {604., 604., 604., 604.},
         {668., 668., 668., 668.},
         {732., 732., 732., 732.}},
        {{796., 796., 796., 796.},
         {860., 860., 860., 860.},
         {924., 924., 924., 924.},
         {988., 988., 988., 988.}}}});
  // Whole numbers: every order of summation gives the same bits.
  CHECK_THAT(stacked, IsEqualTo(printed));
  CHECK(torch::allclose(c, stacked));
}

TEST_CASE(
    "Document 003's heads in one product equal the heads in a loop",
    "[document_003]") {
  const Notebook drawn;
  const auto heads = heads_in_a_loop(drawn);
  const auto q = torch::stack({drawn.q1, drawn.q2}, 1);
  const auto k = torch::stack({drawn.k1, drawn.k2}, 1);
  const auto v = torch::stack({drawn.v1, drawn.v2}, 1);
  const auto kernel =
      GENERATE(Kernel::kAuto, Kernel::kReference, Kernel::kFused);
  CAPTURE(kernel);
  const auto heads2 = head(q, k, v, kernel);
  CHECK_THAT(heads2, HasShape({B, 2, T, C}));

  SECTION("but not where the notebook first looks, which prints False") {
    // heads2 is (B, heads, T, C), so heads2[1] is the second text, not the
    // second head. Only because B equals the number of heads do the shapes fit.
    CHECK_FALSE(torch::allclose(heads.slice(-1, 0, C), heads2[0]));
    CHECK_FALSE(torch::allclose(heads.slice(-1, C), heads2[1]));
    CHECK_THAT(heads.slice(-1, 0, C), IsCloseTo(heads2.select(1, 0)));
    CHECK_THAT(heads.slice(-1, C), IsCloseTo(heads2.select(1, 1)));
  }
  SECTION("once heads and time are transposed") {
    CHECK_THAT(heads2.transpose(1, 2).reshape({B, T, C * 2}), IsCloseTo(heads));
  }
  SECTION("as multiple_head()") {
    CHECK_THAT(multiple_head(q, k, v, kernel), IsCloseTo(heads));
  }
}

TEST_CASE(
    "Document 003 prints how heads are laid side by side",
    "[document_003]") {
  const auto ones = torch::ones({B, T, C});
  const auto x = combine_heads(torch::stack({ones, ones * 2.0}, 1));

  CHECK_THAT(x, HasShape({B, T, 2 * C}));
  const auto printed_row = torch::tensor(
      {1., 1., 1., 1., 1., 1., 1., 1., 2., 2., 2., 2., 2., 2., 2., 2.});
  CHECK_THAT(x, IsEqualTo(printed_row.repeat({B, T, 1})));

  SECTION("so does MultiHeadAttention, whose weights sum to 1") {
    MultiHeadAttention attention(
        MultiHeadAttentionOptions(C, 2 * C, T, 2).out_proj(false));
    const torch::NoGradGuard no_grad;
    // Values: 1 in the first head, 2 in the second.
    attention->W_value->weight.copy_(
        torch::cat({torch::ones({C, C}), torch::ones({C, C}) * 2.0}) / C);
    CHECK_THAT(attention->forward(ones), IsCloseTo(x));
  }
}

TEST_CASE(
    "Document 003's three ways to split queries into heads agree",
    "[document_003]") {
  const Notebook drawn;
  const auto q1 = torch::matmul(drawn.x, drawn.Q1);
  const auto q2 = torch::matmul(drawn.x, drawn.Q2);
  CHECK_THAT(
      q1[0][0].slice(0, 0, 4),
      IsCloseTo(torch::tensor({-0.775647, 2.944931, 4.463573, -0.241652})));
  CHECK_THAT(
      q2[3][7].slice(0, -4),
      IsCloseTo(torch::tensor({4.391903, -0.462157, -3.613506, 0.911181})));

  const auto stacked = torch::stack({q1, q2}, 1);
  CHECK_THAT(stacked.select(1, 0), IsEqualTo(q1));

  const auto Q = torch::cat({drawn.Q1, drawn.Q2}, 1);
  const auto viewed =
      torch::matmul(drawn.x, Q).view({4, 8, 2, 16}).transpose(1, 2);
  CHECK_THAT(viewed.select(1, 0), IsCloseTo(q1));
  CHECK_THAT(viewed.select(1, 1), IsCloseTo(q2));

  const auto broadcast = torch::matmul(
      drawn.x.view({4, 1, 8, 32}), torch::stack({drawn.Q1, drawn.Q2}));
  CHECK(torch::allclose(viewed, broadcast, /*rtol=*/1e-5, /*atol=*/1e-3));

  SECTION("and MultiHeadAttention splits as they do") {
    const torch::NoGradGuard no_grad;
    const auto kernel =
        GENERATE(Kernel::kAuto, Kernel::kReference, Kernel::kFused);
    CAPTURE(kernel);
    MultiHeadAttention attention(
        MultiHeadAttentionOptions(32, 32, 8, 2).out_proj(false).kernel(kernel));
    attention->W_query->weight.copy_(Q.t());
    const auto keys = attention->W_key->forward(drawn.x);
    const auto values = attention->W_value->forward(drawn.x);
    const auto split = [](const torch::Tensor& x) {
      return x.view({4, 8, 2, 16}).transpose(1, 2);
    };
    CHECK_THAT(
        attention->forward(drawn.x),
        IsCloseTo(combine_heads(F::scaled_dot_product_attention(
            stacked,
            split(keys),
            split(values),
            SdpaOptions().causal(true).kernel(kernel)))));
  }
}

TEST_CASE(
    "Document 003's MultipleHeadAttention_v2 gives Python's values",
    "[document_003]") {
  constexpr int64_t kHeadSize = 16;
  const Notebook drawn;
  const auto kernel =
      GENERATE(Kernel::kAuto, Kernel::kReference, Kernel::kFused);
  CAPTURE(kernel);
  // The notebook's layers query, key, value, proj are drawn next.
  MultiHeadAttention attention(MultiHeadAttentionOptions(32, 32, 8, 2)
                                   .qkv_bias(true)
                                   .scale(scale_of_head_size(kHeadSize))
                                   .kernel(kernel));
  copy_linear(attention->W_value, attention->W_key);

  const auto out = attention->forward(drawn.x);

  CHECK_THAT(out, HasShape({4, 8, 32}));
  CHECK_THAT(
      out[0][0].slice(0, 0, 6),
      IsCloseTo(torch::tensor(
          {-0.929708, 0.094579, -0.678655, 0.469286, -0.014098, -0.155343})));
  CHECK_THAT(
      out[0][7].slice(0, 0, 6),
      IsCloseTo(torch::tensor(
          {0.069718, 0.276178, 0.064803, 0.043784, 0.027611, -0.116731})));
  CHECK_THAT(
      out[3][7].slice(0, -6),
      IsCloseTo(torch::tensor(
          {-0.140783, -0.043733, -0.142680, 0.042166, 0.013203, 0.059723})));
}

TEST_CASE(
    "Document 003's Head gives Python's values under seed 123",
    "[document_003]") {
  constexpr int64_t kHeadSize = 16;
  const auto kernel =
      GENERATE(Kernel::kAuto, Kernel::kReference, Kernel::kFused);
  CAPTURE(kernel);
  torch::manual_seed(123);
  const auto x = torch::randn({4, 8, 32});
  CausalAttention attention(CausalAttentionOptions(32, kHeadSize, 8)
                                .qkv_bias(true)
                                .scale(scale_of_head_size(kHeadSize))
                                .kernel(kernel));
  copy_linear(attention->W_value, attention->W_key);

  const auto out = attention->forward(x);

  CHECK_THAT(out, HasShape({4, 8, 16}));
  CHECK_THAT(
      out[0][0].slice(0, 0, 6),
      IsCloseTo(torch::tensor(
          {-0.404331, -0.242536, 0.259385, -1.337956, 0.442252, -0.257803})));
  CHECK_THAT(
      out[3][7].slice(0, -6),
      IsCloseTo(torch::tensor(
          {-0.152262, 0.411864, -0.603072, 0.115316, -0.087537, -0.005095})));

  SECTION("which are the values that attend to themselves") {
    const auto queries = attention->W_query->forward(x);
    const auto values = attention->W_value->forward(x);
    const auto options = SdpaOptions().causal(true).kernel(kernel);
    CHECK_THAT(
        F::scaled_dot_product_attention(queries, values, values, options),
        IsCloseTo(out));
  }
}

TEST_CASE(
    "Document 003's MultipleHeadAttention gives Python's values under seed 123",
    "[document_003]") {
  constexpr int64_t kHeadSize = 16;
  const auto kernel =
      GENERATE(Kernel::kAuto, Kernel::kReference, Kernel::kFused);
  CAPTURE(kernel);
  torch::manual_seed(123);
  const auto x = torch::randn({4, 8, 32});
  const auto set = [&](auto options) {
    return options.qkv_bias(true)
        .scale(scale_of_head_size(kHeadSize))
        .kernel(kernel);
  };
  MultiHeadAttentionWrapper heads(
      set(MultiHeadAttentionWrapperOptions(32, kHeadSize, 8, 2)));
  torch::nn::Linear proj(32, 32);
  std::vector<torch::nn::Linear> queries, values;
  for (const auto& module : *heads->heads) {
    const auto& head = *module->as<CausalAttention>();
    copy_linear(head.W_value, head.W_key);
    queries.push_back(head.W_query);
    values.push_back(head.W_value);
  }
  const auto check = [](const torch::Tensor& out) {
    CHECK_THAT(out, HasShape({4, 8, 32}));
    CHECK_THAT(
        out[0][0].slice(0, 0, 6),
        IsCloseTo(torch::tensor(
            {-0.013297,
             -0.233142,
             -0.093862,
             -0.037071,
             -0.128983,
             0.029077})));
    CHECK_THAT(
        out[3][7].slice(0, -6),
        IsCloseTo(torch::tensor(
            {0.272525, 0.299289, 0.074676, 0.053691, -0.087714, 0.041526})));
  };

  SECTION("as the wrapper and a projection; drop_out = 0 leaves no dropout") {
    check(proj->forward(heads->forward(x)));
  }
  SECTION("as MultiHeadAttention with the heads' weights stacked") {
    MultiHeadAttention attention(set(MultiHeadAttentionOptions(32, 32, 8, 2)));
    stack_linears(queries, attention->W_query);
    stack_linears(values, attention->W_key);
    stack_linears(values, attention->W_value);
    copy_linear(proj, attention->out_proj);
    check(attention->forward(x));
  }
}

} // namespace multiple_heads_test
