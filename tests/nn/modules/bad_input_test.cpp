#include <support/close.h>
#include <support/test.h>

namespace bad_input_test {

using namespace torch_attention;
using namespace torch_attention::testing;

TEST_CASE("An input of a wrong shape is refused") {
  CausalAttention causal(3, 2, 6, 0.0);
  MultiHeadAttentionWrapper wrapper(3, 2, 6, 0.0, 2);
  MultiHeadAttention multi_head(3, 4, 6, 0.0, 2);
  SelfAttentionV1 v1(3, 2);
  SelfAttentionV2 v2(3, 2);

  SECTION("not (B, T, d_in)") {
    THROWS_WITH(
        causal(torch::rand({6, 3})),
        "CausalAttention: expected input of shape (B, T, 3), but got [6, 3]");
    THROWS_WITH(
        wrapper(torch::rand({6, 3})),
        "MultiHeadAttentionWrapper: expected input of shape (B, T, 3), but got "
        "[6, 3]");
    THROWS_WITH(
        multi_head(torch::rand({1, 2, 6, 3})),
        "MultiHeadAttention: expected input of shape (B, T, 3), but got [1, 2, "
        "6, 3]");
  }
  SECTION("not (T, d_in) where the class takes it") {
    THROWS_WITH(
        v1(torch::rand({3})),
        "SelfAttentionV1: expected input of shape (T, 3), but got [3]");
    THROWS_WITH(
        v2(torch::rand({1, 1, 6, 3})),
        "SelfAttentionV2: expected input of shape (T, 3), but got [1, 1, 6, "
        "3]");
  }
  SECTION("a last dimension other than d_in") {
    THROWS_WITH(
        causal(torch::rand({2, 6, 4})),
        "CausalAttention: expected input whose last dimension is d_in = 3, but "
        "got shape [2, 6, 4]");
    THROWS_WITH(
        multi_head(torch::rand({2, 6, 1})),
        "MultiHeadAttention: expected input whose last dimension is d_in = 3");
    THROWS_WITH(
        v1(torch::rand({6, 2})),
        "SelfAttentionV1: expected input whose last dimension is d_in = 3");
  }
  SECTION("more tokens than context_length") {
    THROWS_WITH(
        causal(torch::rand({2, 7, 3})),
        "CausalAttention: expected at most 6 tokens (context_length), but got "
        "7");
    THROWS_WITH(
        multi_head(torch::rand({2, 7, 3})),
        "MultiHeadAttention: expected at most 6 tokens (context_length), but "
        "got 7");
    THROWS_WITH(wrapper(torch::rand({2, 7, 3})), "expected at most 6 tokens");
  }
  SECTION("an undefined tensor") {
    THROWS_WITH(causal(torch::Tensor()), "the input is undefined");
  }
}

TEST_CASE("An input of a wrong dtype or device is refused") {
  MultiHeadAttention attention(3, 4, 6, 0.0, 2);
  THROWS_WITH(
      attention(torch::ones({2, 6, 3}, torch::kLong)),
      "MultiHeadAttention: expected floating-point input, but got Long");
  THROWS_WITH(
      attention(torch::rand({2, 6, 3}, torch::kDouble)),
      "MultiHeadAttention: expected input of dtype Float, that of the weights, "
      "but got Double");
  // The meta device is a second device on every machine.
  THROWS_WITH(
      attention(torch::rand({2, 6, 3}, torch::kMeta)),
      "MultiHeadAttention: expected input on cpu, where the weights are, but "
      "got input on meta");
}

TEST_CASE("Options that make no module are refused") {
  SECTION("sizes that are not positive") {
    const auto size = GENERATE(0, -1);
    const auto got = c10::str(" > 0, but got ", size);
    THROWS_WITH(
        SelfAttentionV1(size, 2), "SelfAttentionV1: expected d_in" + got);
    THROWS_WITH(
        SelfAttentionV2(3, size), "SelfAttentionV2: expected d_out" + got);
    THROWS_WITH(
        CausalAttention(size, 2, 6, 0.0),
        "CausalAttention: expected d_in" + got);
    THROWS_WITH(
        CausalAttention(3, size, 6, 0.0),
        "CausalAttention: expected d_out" + got);
    THROWS_WITH(
        CausalAttention(3, 2, size, 0.0),
        "CausalAttention: expected context_length" + got);
    THROWS_WITH(
        MultiHeadAttention(3, 4, 6, 0.0, size),
        "MultiHeadAttention: expected num_heads" + got);
    THROWS_WITH(
        MultiHeadAttention(3, 4, size, 0.0, 2),
        "MultiHeadAttention: expected context_length" + got);
    THROWS_WITH(
        MultiHeadAttentionWrapper(3, 4, 6, 0.0, size),
        "MultiHeadAttentionWrapper: expected num_heads" + got);
    THROWS_WITH(
        MultiHeadAttention(
            MultiHeadAttentionOptions(3, 4, 6, 2).num_kv_heads(size)),
        "MultiHeadAttention: expected num_kv_heads" + got);
  }
  SECTION("heads that do not divide") {
    THROWS_WITH(
        MultiHeadAttention(3, 5, 6, 0.0, 2),
        "MultiHeadAttention: expected d_out divisible by num_heads, or head_dim, "
        "but got d_out = 5, num_heads = 2");
    THROWS_WITH(
        MultiHeadAttention(
            MultiHeadAttentionOptions(3, 12, 6, 6).num_kv_heads(4)),
        "MultiHeadAttention: expected num_heads divisible by num_kv_heads, but "
        "got num_heads = 6, num_kv_heads = 4");
  }
  SECTION("a dropout that is no probability") {
    const auto dropout = GENERATE(-0.1, 1.1, std::nan(""));
    const auto got = c10::str("expected dropout in [0, 1], but got ", dropout);
    THROWS_WITH(CausalAttention(3, 2, 6, dropout), "CausalAttention: " + got);
    THROWS_WITH(
        MultiHeadAttention(3, 2, 6, dropout, 2), "MultiHeadAttention: " + got);
  }
  SECTION("a scale that is not finite") {
    THROWS_WITH(
        CausalAttention(CausalAttentionOptions(3, 2, 6).scale(
            std::numeric_limits<double>::infinity())),
        "CausalAttention: expected a finite scale, but got inf");
  }
  SECTION("a bias for bare matrices") {
    THROWS_WITH(
        SelfAttentionV1(SelfAttentionOptions(3, 2).qkv_bias(true)),
        "SelfAttentionV1: expected qkv_bias = false");
  }
}

TEST_CASE("A head of the wrapper that was replaced by another class is named") {
  MultiHeadAttentionWrapper wrapper(3, 2, 6, 0.0, 2);
  replace_module(*wrapper, "heads.1", torch::nn::Linear(3, 2));
  THROWS_WITH(
      wrapper(torch::rand({1, 6, 3})),
      "MultiHeadAttentionWrapper: expected heads.1 to be a CausalAttention, "
      "but it is a torch::nn::LinearImpl");
}

TEST_CASE("Empty batches and sequences give empty results") {
  const auto kernel =
      GENERATE(Kernel::kReference, Kernel::kFused, Kernel::kAuto);
  CausalAttention causal(CausalAttentionOptions(3, 2, 6).kernel(kernel));
  MultiHeadAttention multi_head(
      MultiHeadAttentionOptions(3, 4, 6, 2).kernel(kernel));
  MultiHeadAttentionWrapper wrapper(
      MultiHeadAttentionWrapperOptions(3, 4, 6, 2).kernel(kernel));
  CHECK_THAT(causal(torch::rand({0, 6, 3})), HasShape({0, 6, 2}));
  CHECK_THAT(causal(torch::rand({2, 0, 3})), HasShape({2, 0, 2}));
  CHECK_THAT(multi_head(torch::rand({0, 6, 3})), HasShape({0, 6, 4}));
  CHECK_THAT(multi_head(torch::rand({2, 0, 3})), HasShape({2, 0, 4}));
  CHECK_THAT(wrapper(torch::rand({2, 0, 3})), HasShape({2, 0, 8}));
  SelfAttentionV2 v2(SelfAttentionOptions(3, 2).kernel(kernel));
  CHECK_THAT(v2(torch::rand({0, 3})), HasShape({0, 2}));
}

TEST_CASE("One token attends to itself alone") {
  const auto kernel =
      GENERATE(Kernel::kReference, Kernel::kFused, Kernel::kAuto);
  const auto context_length = GENERATE(1, 5);
  torch::manual_seed(1);
  CausalAttention attention(
      CausalAttentionOptions(3, 2, context_length).kernel(kernel));
  const auto x = torch::rand({2, 1, 3});
  CHECK_THAT(attention(x), IsCloseTo(attention->W_value(x)));
  CHECK_THAT(
      attention->mask,
      IsEqualTo(torch::triu(torch::ones({context_length, context_length}), 1)));
}

} // namespace bad_input_test
