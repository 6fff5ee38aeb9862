// Document 002, from 3.6 on: several heads, one by one and in one module.

#include <support/book.h>
#include <support/close.h>
#include <support/linear.h>
#include <support/test.h>

#include <vector>

namespace multi_head_attention_test {

using namespace torch_attention;
using namespace torch_attention::testing;
namespace F = torch_attention::functional;

TEST_CASE(
    "Document 002, 3.6.1: the wrapper prints these context vectors",
    "[document_002]") {
  const auto batch = book_batch();
  const auto kernel =
      GENERATE(Kernel::kAuto, Kernel::kReference, Kernel::kFused);
  CAPTURE(kernel);
  torch::manual_seed(123);
  MultiHeadAttentionWrapper attention(
      MultiHeadAttentionWrapperOptions(3, 2, 6, 2).kernel(kernel));

  const auto context = attention->forward(batch);

  const auto printed = twice(torch::tensor(
      {{-0.4519, 0.2216, 0.4772, 0.1063},
       {-0.5874, 0.0058, 0.5891, 0.3257},
       {-0.6300, -0.0632, 0.6202, 0.3860},
       {-0.5675, -0.0843, 0.5478, 0.3589},
       {-0.5526, -0.0981, 0.5321, 0.3428},
       {-0.5299, -0.1081, 0.5077, 0.3493}}));
  CHECK_THAT(context, IsPrinted(printed));
  CHECK_THAT(context, HasShape({2, 6, 4}));

  SECTION("so do Python's positional arguments") {
    torch::manual_seed(123);
    MultiHeadAttentionWrapper positional(3, 2, 6, 0.0, 2);
    CHECK_THAT(positional->forward(batch), IsPrinted(printed));
  }
}

TEST_CASE(
    "Document 002, exercise 3.2: d_out = 1 makes the wrapper's vectors "
    "2-dimensional",
    "[document_002]") {
  const auto kernel =
      GENERATE(Kernel::kAuto, Kernel::kReference, Kernel::kFused);
  CAPTURE(kernel);
  torch::manual_seed(123);
  MultiHeadAttentionWrapper attention(
      MultiHeadAttentionWrapperOptions(3, /*d_out=*/1, 6, 2).kernel(kernel));

  const auto context = attention->forward(book_batch());

  CHECK_THAT(context, HasShape({2, 6, 2}));
  CHECK_THAT(
      context,
      IsCloseTo(twice(torch::tensor(
          {{-0.573988, 0.221605},
           {-0.731986, 0.015525},
           {-0.777365, -0.054602},
           {-0.697865, -0.081738},
           {-0.653845, -0.095701},
           {-0.642381, -0.106454}}))));
}

TEST_CASE(
    "Document 002, 3.6.2: a batched matrix product multiplies each head",
    "[document_002]") {
  const auto a = torch::tensor(
      {{{{0.2745, 0.6584, 0.2775, 0.8573},
         {0.8993, 0.0390, 0.9268, 0.7388},
         {0.7179, 0.7058, 0.9156, 0.4340}},
        {{0.0772, 0.3565, 0.1479, 0.5331},
         {0.4066, 0.2318, 0.4545, 0.9737},
         {0.4606, 0.5159, 0.4220, 0.5786}}}});
  const auto first = torch::tensor(
      {{1.3208, 1.1631, 1.2879},
       {1.1631, 2.2150, 1.8424},
       {1.2879, 1.8424, 2.0402}});
  const auto second = torch::tensor(
      {{0.4391, 0.7003, 0.5903},
       {0.7003, 1.3737, 1.0620},
       {0.5903, 1.0620, 0.9912}});

  CHECK_THAT(
      F::attention_scores(a, a),
      IsPrinted(torch::stack({first, second}).unsqueeze(0)));
  CHECK_THAT(F::attention_scores(a[0][0], a[0][0]), IsPrinted(first));
  CHECK_THAT(F::attention_scores(a[0][1], a[0][1]), IsPrinted(second));
}

TEST_CASE(
    "Document 002, 3.6.2: MultiHeadAttention prints these context vectors",
    "[document_002]") {
  const auto batch = book_batch();
  const auto printed = twice(torch::tensor(
      {{0.3190, 0.4858},
       {0.2943, 0.3897},
       {0.2856, 0.3593},
       {0.2693, 0.3873},
       {0.2639, 0.3928},
       {0.2575, 0.4028}}));

  SECTION("by every kernel") {
    const auto kernel =
        GENERATE(Kernel::kAuto, Kernel::kReference, Kernel::kFused);
    CAPTURE(kernel);
    torch::manual_seed(123);
    MultiHeadAttention attention(
        MultiHeadAttentionOptions(3, 2, 6, 2).kernel(kernel));
    const auto context = attention->forward(batch);
    CHECK_THAT(context, IsPrinted(printed));
    CHECK_THAT(context, HasShape({2, 6, 2}));
  }
  SECTION("with Python's positional arguments") {
    torch::manual_seed(123);
    MultiHeadAttention attention(3, 2, 6, 0.0, 2);
    CHECK_THAT(attention->forward(batch), IsPrinted(printed));
  }
  SECTION("and Python's values with dropout") {
    const bool by_torch = dropout_is_drawn_by_torch();
    torch::manual_seed(123);
    MultiHeadAttention attention(MultiHeadAttentionOptions(3, 2, 6, 2)
                                     .dropout(0.5)
                                     .kernel(Kernel::kReference));
    const auto context = attention->forward(batch);
    CHECK_THAT(context, HasShape({2, 6, 2}));
    if (by_torch) {
      CHECK_THAT(
          context,
          IsCloseTo(torch::tensor(
              {{{0.344081, 0.230597},
                {0.317791, 0.309428},
                {0.275156, 0.437271},
                {0.330519, 0.216209},
                {0.176625, 0.566733},
                {0.261481, 0.398100}},
               {{0.293955, 0.740929},
                {0.367964, 0.338550},
                {0.248665, 0.423199},
                {0.292671, 0.304582},
                {0.210257, 0.402345},
                {0.239945, 0.405447}}})));
    }
  }
}

TEST_CASE(
    "Document 002, 3.6.2: MultiHeadAttention is the wrapper with its heads' "
    "weights in one layer, then a projection",
    "[document_002]") {
  const auto kernel =
      GENERATE(Kernel::kAuto, Kernel::kReference, Kernel::kFused);
  CAPTURE(kernel);
  torch::manual_seed(123);
  MultiHeadAttentionWrapper wrapper(
      MultiHeadAttentionWrapperOptions(3, 2, 6, 2).kernel(kernel));
  MultiHeadAttention attention(
      MultiHeadAttentionOptions(3, 4, 6, 2).kernel(kernel));
  std::vector<torch::nn::Linear> queries, keys, values;
  for (const auto& module : *wrapper->heads) {
    const auto& head = *module->as<CausalAttention>();
    queries.push_back(head.W_query);
    keys.push_back(head.W_key);
    values.push_back(head.W_value);
  }
  stack_linears(queries, attention->W_query);
  stack_linears(keys, attention->W_key);
  stack_linears(values, attention->W_value);
  const auto batch = book_batch();

  CHECK_THAT(
      attention->forward(batch),
      IsCloseTo(attention->out_proj->forward(wrapper->forward(batch))));
}

TEST_CASE(
    "Document 002, exercise 3.3: attention of GPT-2's size",
    "[document_002]") {
  SECTION("the smallest GPT-2 has 12 heads and 768 dimensions") {
    const auto kernel =
        GENERATE(Kernel::kAuto, Kernel::kReference, Kernel::kFused);
    CAPTURE(kernel);
    torch::manual_seed(123);
    MultiHeadAttention attention(
        MultiHeadAttentionOptions(768, 768, 1024, 12).kernel(kernel));
    const auto x = torch::randn({2, 6, 768});

    int64_t parameters = 0;
    for (const auto& parameter : attention->parameters()) {
      parameters += parameter.numel();
    }
    // Three layers without bias, one with.
    CHECK(parameters == 4 * 768 * 768 + 768);
    CHECK(parameters == 2360064);
    CHECK(attention->head_dim == 64);
    CHECK_THAT(attention->mask, HasShape({1024, 1024}));

    const auto context = attention->forward(x);
    CHECK_THAT(context, HasShape({2, 6, 768}));
    CHECK_THAT(
        x[1][5].slice(0, 0, 4),
        IsCloseTo(torch::tensor({-0.967185, 1.259205, 1.684240, -0.488779})));
    CHECK_THAT(
        context[0][0].slice(0, 0, 4),
        IsCloseTo(torch::tensor({-0.112772, -0.429489, -0.134076, 0.255242})));
    CHECK_THAT(
        context[1][5].slice(0, -4),
        IsCloseTo(torch::tensor({0.204744, 0.216403, 0.194054, -0.474698})));
  }
  SECTION("it takes all of its 1024 tokens and no more") {
    MultiHeadAttention attention(768, 768, 1024, 0.0, 12);
    CHECK_THAT(
        attention->forward(torch::zeros({1, 1024, 768})),
        HasShape({1, 1024, 768}));
    THROWS_WITH(attention->forward(torch::zeros({1, 1025, 768})), "1024");
  }
  SECTION("the largest GPT-2 has 25 heads and 1600 dimensions") {
    MultiHeadAttention attention(1600, 1600, 1024, 0.0, 25);
    CHECK(attention->head_dim == 64);
    CHECK_THAT(
        attention->forward(torch::zeros({1, 2, 1600})), HasShape({1, 2, 1600}));
  }
}

} // namespace multi_head_attention_test
