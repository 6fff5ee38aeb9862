// Document 000: a notebook on multi-head attention that builds the causal mask
// and does not apply it: `masked_fill` without the underscore returns a new
// tensor, which is dropped. Its printed values are those of attention without a
// mask, here `causal(false)`.

#include <support/book.h>
#include <support/close.h>
#include <support/test.h>

#include <tuple>

namespace multi_head_without_mask_test {

using namespace torch_attention;
using namespace torch_attention::testing;
namespace F = torch_attention::functional;

namespace {

/// Options of the wrapper or of MultiHeadAttention.
template <typename Options>
Options two_heads(Kernel kernel) {
  return Options(
             /*d_in=*/3, /*d_out=*/2, /*context_length=*/6, /*num_heads=*/2)
      .causal(false)
      .kernel(kernel);
}

torch::Tensor printed_of_wrapper() {
  return twice(torch::tensor(
      {{-0.5337, -0.1051, 0.5085, 0.3508},
       {-0.5323, -0.1080, 0.5084, 0.3508},
       {-0.5323, -0.1079, 0.5084, 0.3506},
       {-0.5297, -0.1076, 0.5074, 0.3471},
       {-0.5311, -0.1066, 0.5076, 0.3446},
       {-0.5299, -0.1081, 0.5077, 0.3493}}));
}

torch::Tensor printed_of_multi_head() {
  return twice(torch::tensor(
      {{0.2595, 0.4014},
       {0.2583, 0.4014},
       {0.2583, 0.4014},
       {0.2575, 0.4031},
       {0.2582, 0.4026},
       {0.2575, 0.4028}}));
}

} // namespace

TEST_CASE(
    "Document 000 prints the batch that it attends to",
    "[document_000]") {
  const auto printed = twice(torch::tensor(
      {{0.4300, 0.1500, 0.8900},
       {0.5500, 0.8700, 0.6600},
       {0.5700, 0.8500, 0.6400},
       {0.2200, 0.5800, 0.3300},
       {0.7700, 0.2500, 0.1000},
       {0.0500, 0.8000, 0.5500}}));
  CHECK_THAT(book_batch(), IsPrinted(printed));
  CHECK_THAT(book_batch(), HasShape({2, 6, 3}));
}

TEST_CASE(
    "Document 000's wrapper without its mask prints these context vectors",
    "[document_000]") {
  const auto kernel =
      GENERATE(Kernel::kAuto, Kernel::kReference, Kernel::kFused);
  CAPTURE(kernel);
  torch::manual_seed(123);
  MultiHeadAttentionWrapper attention(
      two_heads<MultiHeadAttentionWrapperOptions>(kernel));

  const auto context = attention->forward(book_batch());

  CHECK_THAT(context, IsPrinted(printed_of_wrapper()));
  CHECK_THAT(context, HasShape({2, 6, 4}));
}

TEST_CASE(
    "Document 000's wrapper follows from the functional forms, head by head",
    "[document_000]") {
  torch::manual_seed(123);
  MultiHeadAttentionWrapper attention(
      two_heads<MultiHeadAttentionWrapperOptions>(Kernel::kReference));
  const auto batch = book_batch();

  std::vector<torch::Tensor> of_heads;
  for (const auto& module : *attention->heads) {
    auto& head = *module->as<CausalAttention>();
    const auto keys = head.W_key->forward(batch);
    const auto queries = head.W_query->forward(batch);
    const auto values = head.W_value->forward(batch);
    const auto scores = F::attention_scores(queries, keys);
    const auto weights = F::attention_weights(scores, keys.size(-1));
    of_heads.push_back(torch::matmul(weights, values));
    CHECK_THAT(
        F::scaled_dot_product_attention(queries, keys, values),
        IsCloseTo(of_heads.back()));
  }

  CHECK_THAT(torch::cat(of_heads, -1), IsPrinted(printed_of_wrapper()));
}

TEST_CASE(
    "Document 000's MultiHeadAttention without its mask prints these context "
    "vectors",
    "[document_000]") {
  const auto kernel =
      GENERATE(Kernel::kAuto, Kernel::kReference, Kernel::kFused);
  CAPTURE(kernel);
  torch::manual_seed(123);
  MultiHeadAttention attention(two_heads<MultiHeadAttentionOptions>(kernel));

  const auto context = attention->forward(book_batch());

  CHECK_THAT(context, IsPrinted(printed_of_multi_head()));
  CHECK_THAT(context, HasShape({2, 6, 2}));
}

TEST_CASE(
    "Document 000's missing underscore matters for all tokens but the last",
    "[document_000]") {
  torch::manual_seed(123);
  MultiHeadAttention unmasked(
      two_heads<MultiHeadAttentionOptions>(Kernel::kReference));
  torch::manual_seed(123);
  MultiHeadAttention masked(
      two_heads<MultiHeadAttentionOptions>(Kernel::kReference).causal(true));
  const auto batch = book_batch();

  const auto without = unmasked->forward(batch);
  const auto with = masked->forward(batch);

  SECTION("the last token sees all tokens either way") {
    CHECK_THAT(without.select(1, -1), IsEqualTo(with.select(1, -1)));
  }
  SECTION("each other token sees more than it should") {
    for (int64_t t = 0; t < 5; ++t) {
      CAPTURE(t);
      CHECK_THAT(without.select(1, t), !IsCloseTo(with.select(1, t)));
    }
  }
  SECTION("the weights of later tokens are not 0") {
    const auto weights = std::get<1>(unmasked->forward_with_weights(batch));
    CHECK_THAT(weights, HasShape({2, 2, 6, 6}));
    CHECK(weights.gt(0).all().item<bool>());
  }
}

} // namespace multi_head_without_mask_test
