// Document 002: a chapter on attention, from the softmax by hand to one head
// (3.3 to 3.5). Cells carry the numbers in which they were run.

#include <support/book.h>
#include <support/close.h>
#include <support/test.h>

#include <ATen/CPUGeneratorImpl.h>

#include <cmath>
#include <mutex>
#include <tuple>
#include <vector>

namespace attention_mechanisms_test {

using namespace torch_attention;
using namespace torch_attention::testing;
namespace F = torch_attention::functional;

namespace {

using SdpaOptions = F::ScaledDotProductAttentionFuncOptions;

/// The scores of all pairs of tokens, as cell 2 prints them.
torch::Tensor printed_scores() {
  return torch::tensor(
      {{0.9995, 0.9544, 0.9422, 0.4753, 0.4576, 0.6310},
       {0.9544, 1.4950, 1.4754, 0.8434, 0.7070, 1.0865},
       {0.9422, 1.4754, 1.4570, 0.8296, 0.7154, 1.0605},
       {0.4753, 0.8434, 0.8296, 0.4937, 0.3474, 0.6565},
       {0.4576, 0.7070, 0.7154, 0.3474, 0.6654, 0.2935},
       {0.6310, 1.0865, 1.0605, 0.6565, 0.2935, 0.9450}});
}

/// The weights of the class `SelfAttention_v1`, as cell 13 prints them.
torch::Tensor printed_weights_of_class() {
  return torch::tensor(
      {{0.1785, 0.2034, 0.2016, 0.1328, 0.1336, 0.1500},
       {0.1748, 0.2169, 0.2145, 0.1236, 0.1263, 0.1439},
       {0.1749, 0.2162, 0.2139, 0.1241, 0.1268, 0.1442},
       {0.1711, 0.1939, 0.1927, 0.1427, 0.1447, 0.1549},
       {0.1738, 0.1899, 0.1889, 0.1449, 0.1464, 0.1561},
       {0.1712, 0.2022, 0.2007, 0.1361, 0.1385, 0.1512}});
}

/// Query, key and value matrices of cell 8, (3, 3) each, drawn after its seed.
struct Cell8 {
  Cell8() {
    torch::manual_seed(123);
    W_query = torch::rand({3, 3});
    W_key = torch::rand({3, 3});
    W_value = torch::rand({3, 3});
  }

  torch::Tensor W_query, W_key, W_value;
};

/// The class of which cell 13 prints the weights. That cell does not seed: its
/// values depend on what was drawn since the seed of cell 8. They are those of
/// the fifth `SelfAttention_v1`: it seems that the cell was run five times, as
/// numbers 9 to 13.
SelfAttentionV1 class_of_cell_13(Kernel kernel = Kernel::kReference) {
  const Cell8 drawn_before;
  SelfAttentionV1 attention = nullptr;
  for (int run = 9; run <= 13; ++run) {
    attention = SelfAttentionV1(SelfAttentionOptions(3, 3).kernel(kernel));
  }
  return attention;
}

torch::Tensor weights_of_cell_13() {
  auto attention = class_of_cell_13();
  return std::get<1>(attention->forward_with_weights(book_inputs()));
}

/// The elements that `Dropout(0.5)` keeps of (6, 6) in a LibTorch that draws
/// by MKL's generator MCG31m1, seeded with the first number of torch's own.
/// x86 builds did so until PyTorch issue 132395.
torch::Tensor kept_by_mkl() {
  constexpr uint64_t kModulus = 2147483647;
  constexpr uint64_t kMultiplier = 1132489760;
  auto generator = at::detail::getDefaultCPUGenerator();
  uint64_t state = 0;
  {
    const std::lock_guard<std::mutex> lock(generator.mutex());
    state = generator.get<at::CPUGeneratorImpl>()->random() % kModulus;
  }
  auto kept = torch::empty({36}, torch::kBool);
  for (int64_t i = 0; i < kept.numel(); ++i) {
    kept[i] = static_cast<double>(state) / kModulus < 0.5;
    state = state * kMultiplier % kModulus;
  }
  return kept.view({6, 6});
}

} // namespace

TEST_CASE(
    "Document 002, 3.3.1: one query attends to all inputs (cell 1)",
    "[document_002]") {
  const auto inputs = book_inputs();
  const auto scores = F::attention_scores(inputs[1], inputs);
  CHECK_THAT(
      scores,
      IsPrinted(
          torch::tensor({0.9544, 1.4950, 1.4754, 0.8434, 0.7070, 1.0865})));

  const auto weights = F::softmax_naive(scores);
  CHECK_THAT(
      weights,
      IsPrinted(
          torch::tensor({0.1385, 0.2379, 0.2333, 0.1240, 0.1082, 0.1581})));
  CHECK_THAT(weights.sum(), IsPrinted(torch::tensor(1.0)));

  const auto printed = torch::tensor({0.4419, 0.6515, 0.5683});
  SECTION("the context vector sums up the inputs by their weights") {
    auto context = torch::zeros(3);
    for (int64_t i = 0; i < inputs.size(0); ++i) {
      context += weights[i] * inputs[i];
    }
    CHECK_THAT(context, IsPrinted(printed));
  }
  SECTION("it is scaled dot product attention of one query, without a scale") {
    const auto kernel =
        GENERATE(Kernel::kAuto, Kernel::kReference, Kernel::kFused);
    CAPTURE(kernel);
    const auto context = F::scaled_dot_product_attention(
        inputs.slice(0, 1, 2),
        inputs,
        inputs,
        SdpaOptions().scale(1.0).kernel(kernel));
    CHECK_THAT(context, IsPrinted(printed.view({1, 3})));
  }
}

TEST_CASE(
    "Document 002, 3.3.2: all inputs attend to all inputs (cell 2)",
    "[document_002]") {
  const auto inputs = book_inputs();
  const auto scores = F::attention_scores(inputs, inputs);
  const auto weights =
      F::attention_weights(scores, inputs.size(1), SdpaOptions().scale(1.0));

  SECTION("the scores are the dot products") {
    CHECK_THAT(scores, IsPrinted(printed_scores()));
    auto one_by_one = torch::empty({6, 6});
    for (int64_t i = 0; i < 6; ++i) {
      for (int64_t j = 0; j < 6; ++j) {
        one_by_one[i][j] = torch::dot(inputs[i], inputs[j]);
      }
    }
    CHECK_THAT(scores, IsCloseTo(one_by_one));
  }
  SECTION("the weights are their softmax") {
    const auto printed = torch::tensor(
        {{0.2098, 0.2006, 0.1981, 0.1242, 0.1220, 0.1452},
         {0.1385, 0.2379, 0.2333, 0.1240, 0.1082, 0.1581},
         {0.1390, 0.2369, 0.2326, 0.1242, 0.1108, 0.1565},
         {0.1435, 0.2074, 0.2046, 0.1462, 0.1263, 0.1720},
         {0.1526, 0.1958, 0.1975, 0.1367, 0.1879, 0.1295},
         {0.1385, 0.2184, 0.2128, 0.1420, 0.0988, 0.1896}});
    CHECK_THAT(weights, IsPrinted(printed));
    CHECK_THAT(F::softmax_naive(scores, /*dim=*/1), IsPrinted(printed));
  }
  SECTION("each row of the weights sums to 1") {
    CHECK_THAT(weights.sum(1), IsPrinted(torch::ones(6)));
  }
  SECTION("the context matrix weighs the inputs") {
    const auto kernel =
        GENERATE(Kernel::kAuto, Kernel::kReference, Kernel::kFused);
    CAPTURE(kernel);
    const auto context = F::scaled_dot_product_attention(
        inputs, inputs, inputs, SdpaOptions().scale(1.0).kernel(kernel));
    CHECK_THAT(context, IsCloseTo(torch::matmul(weights, inputs)));
    // The document's print ends within the fourth row, after 0.4304.
    CHECK_THAT(
        context.slice(0, 0, 3),
        IsPrinted(torch::tensor(
            {{0.4421, 0.5931, 0.5790},
             {0.4419, 0.6515, 0.5683},
             {0.4431, 0.6496, 0.5671}})));
    CHECK_THAT(context[3][0], IsPrinted(torch::tensor(0.4304)));
    // The rest, as Python prints it.
    CHECK_THAT(
        context.slice(0, 3),
        IsPrinted(torch::tensor(
            {{0.4304, 0.6298, 0.5510},
             {0.4671, 0.5910, 0.5266},
             {0.4177, 0.6503, 0.5645}})));
  }
}

TEST_CASE(
    "Document 002, 3.3.3: attention with trainable matrices (cell 8)",
    "[document_002]") {
  const auto inputs = book_inputs();
  // The document says that the output size is 2 and sets d_out = 3.
  const auto printed = torch::tensor(
      {{0.6692, 1.0276, 1.1106},
       {0.6864, 1.0577, 1.1389},
       {0.6860, 1.0570, 1.1383},
       {0.6738, 1.0361, 1.1180},
       {0.6711, 1.0307, 1.1139},
       {0.6783, 1.0441, 1.1252}});
  const auto kernel =
      GENERATE(Kernel::kAuto, Kernel::kReference, Kernel::kFused);
  CAPTURE(kernel);

  SECTION("step by step") {
    const Cell8 matrices;
    const auto queries = torch::matmul(inputs, matrices.W_query);
    const auto keys = torch::matmul(inputs, matrices.W_key);
    const auto values = torch::matmul(inputs, matrices.W_value);
    const auto scores = F::attention_scores(queries, keys);
    const auto weights = F::attention_weights(scores, keys.size(-1));
    CHECK_THAT(torch::matmul(weights, values), IsPrinted(printed));
    CHECK_THAT(
        F::scaled_dot_product_attention(
            queries, keys, values, SdpaOptions().kernel(kernel)),
        IsPrinted(printed));
  }
  SECTION("SelfAttentionV1 draws the same matrices") {
    torch::manual_seed(123);
    SelfAttentionV1 attention(SelfAttentionOptions(3, 3).kernel(kernel));
    CHECK_THAT(attention->forward(inputs), IsPrinted(printed));
  }
  SECTION("SelfAttentionV2 computes the same with their transposes") {
    const Cell8 matrices;
    SelfAttentionV2 attention(SelfAttentionOptions(3, 3).kernel(kernel));
    {
      const torch::NoGradGuard no_grad;
      attention->W_query->weight.copy_(matrices.W_query.t());
      attention->W_key->weight.copy_(matrices.W_key.t());
      attention->W_value->weight.copy_(matrices.W_value.t());
    }
    CHECK_THAT(attention->forward(inputs), IsPrinted(printed));
  }
}

TEST_CASE(
    "Document 002, 3.4: the weights of SelfAttention_v1 (cell 13)",
    "[document_002]") {
  const auto inputs = book_inputs();

  SECTION("the document prints those of the fifth module after its seed") {
    auto attention = class_of_cell_13();
    const auto queries = torch::matmul(inputs, attention->W_query);
    const auto keys = torch::matmul(inputs, attention->W_key);
    const auto scores = F::attention_scores(queries, keys);
    CHECK_THAT(
        F::attention_weights(scores, keys.size(-1)),
        IsPrinted(printed_weights_of_class()));
    CHECK_THAT(weights_of_cell_13(), IsPrinted(printed_weights_of_class()));
  }
  SECTION("the first module after the seed has Python's weights") {
    const Cell8 drawn_before;
    SelfAttentionV1 attention(3, 3);
    const auto [context, weights] = attention->forward_with_weights(inputs);
    CHECK_THAT(
        weights,
        IsCloseTo(torch::tensor(
            {{0.174606, 0.234985, 0.227888, 0.114671, 0.084215, 0.163635},
             {0.169884, 0.265120, 0.253509, 0.094032, 0.059539, 0.157915},
             {0.170011, 0.264109, 0.252664, 0.094734, 0.060275, 0.158208},
             {0.173221, 0.221403, 0.216016, 0.125308, 0.097411, 0.166641},
             {0.172625, 0.218189, 0.213193, 0.127914, 0.100857, 0.167221},
             {0.173285, 0.235267, 0.228103, 0.114983, 0.083887, 0.164475}})));
  }
  SECTION("the module's context vectors are Python's") {
    const auto kernel =
        GENERATE(Kernel::kAuto, Kernel::kReference, Kernel::kFused);
    CAPTURE(kernel);
    CHECK_THAT(
        class_of_cell_13(kernel)->forward(inputs),
        IsCloseTo(torch::tensor(
            {{0.928914, 0.975220, 0.977630},
             {0.940481, 0.988344, 0.989410},
             {0.939854, 0.987657, 0.988754},
             {0.916838, 0.963999, 0.963781},
             {0.914154, 0.960430, 0.961301},
             {0.924937, 0.972661, 0.972398}})));
  }
}

TEST_CASE(
    "Document 002, 3.4: later tokens are masked and the rows renormalised "
    "(cell 13)",
    "[document_002]") {
  const auto weights = weights_of_cell_13();
  const auto mask_simple = F::causal_mask(6, 6).logical_not().to(torch::kFloat);
  const auto masked = weights * mask_simple;
  const auto renormalised = masked / masked.sum(1, /*keepdim=*/true);

  SECTION("the mask is the lower triangle") {
    CHECK_THAT(
        mask_simple,
        IsEqualTo(torch::tensor(
            {{1., 0., 0., 0., 0., 0.},
             {1., 1., 0., 0., 0., 0.},
             {1., 1., 1., 0., 0., 0.},
             {1., 1., 1., 1., 0., 0.},
             {1., 1., 1., 1., 1., 0.},
             {1., 1., 1., 1., 1., 1.}})));
    CHECK_THAT(mask_simple, IsEqualTo(torch::tril(torch::ones({6, 6}))));
  }
  SECTION("the product with the weights is printed") {
    CHECK_THAT(
        masked,
        IsPrinted(torch::tensor(
            {{0.1785, 0.0000, 0.0000, 0.0000, 0.0000, 0.0000},
             {0.1748, 0.2169, 0.0000, 0.0000, 0.0000, 0.0000},
             {0.1749, 0.2162, 0.2139, 0.0000, 0.0000, 0.0000},
             {0.1711, 0.1939, 0.1927, 0.1427, 0.0000, 0.0000},
             {0.1738, 0.1899, 0.1889, 0.1449, 0.1464, 0.0000},
             {0.1712, 0.2022, 0.2007, 0.1361, 0.1385, 0.1512}})));
  }
  // The document's print ends before this matrix: these are Python's values.
  const auto pythons = torch::tensor(
      {{1.000000, 0.000000, 0.000000, 0.000000, 0.000000, 0.000000},
       {0.446311, 0.553689, 0.000000, 0.000000, 0.000000, 0.000000},
       {0.289105, 0.357393, 0.353503, 0.000000, 0.000000, 0.000000},
       {0.244298, 0.276767, 0.275137, 0.203798, 0.000000, 0.000000},
       {0.205947, 0.225028, 0.223812, 0.171753, 0.173459, 0.000000},
       {0.171207, 0.202240, 0.200702, 0.136105, 0.138511, 0.151236}});
  SECTION("the renormalised rows sum to 1") {
    CHECK_THAT(renormalised, IsCloseTo(pythons));
    CHECK_THAT(renormalised.sum(1), IsCloseTo(torch::ones(6)));
  }
  SECTION("masking the scores instead gives the renormalised rows at once") {
    auto attention = class_of_cell_13();
    const auto inputs = book_inputs();
    const auto scores = F::attention_scores(
        torch::matmul(inputs, attention->W_query),
        torch::matmul(inputs, attention->W_key));
    CHECK_THAT(
        F::attention_weights(scores, 3, SdpaOptions().causal(true)),
        IsCloseTo(pythons));
    CHECK_THAT(
        F::attention_weights(
            scores, 3, SdpaOptions().mask(F::causal_mask(6, 6))),
        IsCloseTo(pythons));
  }
}

TEST_CASE(
    "Document 002, 3.5: half of the weights are dropped (cell 15)",
    "[document_002]") {
  const auto weights = weights_of_cell_13();
  const auto printed = torch::tensor(
      {{0.3570, 0.4068, 0.4032, 0.2657, 0.2672, 0.3001},
       {0.0000, 0.4338, 0.0000, 0.0000, 0.0000, 0.0000},
       {0.0000, 0.0000, 0.4277, 0.0000, 0.2536, 0.0000},
       {0.3422, 0.3877, 0.0000, 0.0000, 0.0000, 0.3097},
       {0.3476, 0.0000, 0.0000, 0.0000, 0.0000, 0.3121},
       {0.0000, 0.4045, 0.0000, 0.0000, 0.0000, 0.0000}});

  SECTION("the document's LibTorch drew what to keep by MKL") {
    torch::manual_seed(123);
    CHECK_THAT(weights * kept_by_mkl() / 0.5, IsPrinted(printed));
  }
  SECTION("this LibTorch keeps what its own Python keeps") {
    const auto pythons = torch::tensor(
        {{0.357049, 0.406838, 0.000000, 0.265694, 0.267191, 0.000000},
         {0.000000, 0.000000, 0.000000, 0.247162, 0.000000, 0.287725},
         {0.349799, 0.432423, 0.427716, 0.248152, 0.000000, 0.288333},
         {0.000000, 0.387702, 0.385419, 0.000000, 0.000000, 0.309726},
         {0.000000, 0.379820, 0.000000, 0.289898, 0.000000, 0.312122},
         {0.000000, 0.404480, 0.401403, 0.272209, 0.277022, 0.000000}});
    const bool by_torch = dropout_is_drawn_by_torch();
    auto attention = class_of_cell_13();
    const auto inputs = book_inputs();
    const auto queries = torch::matmul(inputs, attention->W_query);
    const auto keys = torch::matmul(inputs, attention->W_key);
    const auto values = torch::matmul(inputs, attention->W_value);

    torch::manual_seed(123);
    const auto [context, dropped] =
        F::scaled_dot_product_attention_with_weights(
            queries,
            keys,
            values,
            SdpaOptions().dropout(0.5).kernel(Kernel::kReference));
    CHECK_THAT(dropped, IsPrinted(by_torch ? pythons : printed));
    CHECK_THAT(context, IsCloseTo(torch::matmul(dropped, values)));

    torch::manual_seed(123);
    CHECK_THAT(
        F::scaled_dot_product_attention(
            queries,
            keys,
            values,
            SdpaOptions().dropout(0.5).kernel(Kernel::kReference)),
        IsEqualTo(context));
  }
  SECTION("nothing is dropped outside of training") {
    const auto scores = printed_scores();
    const auto kept = F::scaled_dot_product_attention_with_weights(
        scores, scores, scores, SdpaOptions().dropout(0.5).training(false));
    const auto all =
        F::scaled_dot_product_attention_with_weights(scores, scores, scores);
    CHECK_THAT(std::get<1>(kept), IsEqualTo(std::get<1>(all)));
  }
}

TEST_CASE(
    "Document 002, 3.5: the class CausalAttention gives Python's values under "
    "seed 123",
    "[document_002]") {
  const auto batch = book_batch();

  SECTION("without dropout, by every kernel") {
    const auto kernel =
        GENERATE(Kernel::kAuto, Kernel::kReference, Kernel::kFused);
    CAPTURE(kernel);
    torch::manual_seed(123);
    CausalAttention attention(CausalAttentionOptions(3, 2, 6).kernel(kernel));
    CHECK_THAT(
        attention->forward(batch),
        IsCloseTo(twice(torch::tensor(
            {{-0.451920, 0.221605},
             {-0.587435, 0.005776},
             {-0.630023, -0.063183},
             {-0.567457, -0.084253},
             {-0.552562, -0.098068},
             {-0.529901, -0.108068}}))));
  }
  SECTION("with dropout") {
    const bool by_torch = dropout_is_drawn_by_torch();
    const CausalAttentionOptions options =
        CausalAttentionOptions(3, 2, 6).dropout(0.5).kernel(Kernel::kReference);
    torch::manual_seed(123);
    CausalAttention attention(options);
    const auto context = attention->forward(batch);

    // One random stream, spent step by step.
    torch::manual_seed(123);
    CausalAttention layers(options);
    const auto keys = layers->W_key->forward(batch);
    const auto queries = layers->W_query->forward(batch);
    const auto values = layers->W_value->forward(batch);
    const auto weights = F::attention_weights(
        F::attention_scores(queries, keys), 2, SdpaOptions().causal(true));
    const auto dropped = layers->dropout->forward(weights);
    CHECK_THAT(context, IsEqualTo(torch::matmul(dropped, values)));

    if (by_torch) {
      CHECK_THAT(
          context,
          IsCloseTo(torch::tensor(
              {{{-0.903841, 0.443210},
                {-0.436799, 0.214190},
                {-0.484928, -0.134102},
                {-0.583359, 0.008133},
                {-0.621865, -0.052634},
                {-0.141713, -0.050486}},
               {{0.000000, 0.000000},
                {-1.174870, 0.011552},
                {-0.773256, 0.007283},
                {-0.913953, -0.276857},
                {-0.767861, -0.073537},
                {-0.674855, -0.098385}}})));
    }
  }
}

} // namespace attention_mechanisms_test
