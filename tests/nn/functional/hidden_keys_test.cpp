#include <support/attention_by_loops.h>
#include <support/close.h>
#include <support/test.h>

#include <limits>
#include <optional>

namespace hidden_keys_test {

using namespace torch_attention;
using namespace torch_attention::testing;
namespace F = torch_attention::functional;

using Options = F::ScaledDotProductAttentionFuncOptions;

namespace {

constexpr int64_t kBatch = 3;
constexpr int64_t kQueryHeads = 4;
constexpr int64_t kSharedHeads = 2;
constexpr int64_t kSize = 8;

/// Which keys which queries see, and what to pass for it.
struct Visible {
  std::string name;
  int64_t T;
  int64_t S;
  bool causal = false;
  int64_t window = 0;
  std::vector<int64_t> lengths;
  std::vector<int64_t> offsets;
  std::optional<int64_t> after = std::nullopt;
  std::optional<int64_t> chunk = std::nullopt;

  bool hides(int64_t b, int64_t t, int64_t s) const {
    const auto i = static_cast<size_t>(b);
    const auto position = (offsets.empty() ? S - T : offsets[i]) + t;
    const auto begin = chunk ? position - position % *chunk : 0;
    return (causal && s > position) || (window > 0 && s <= position - window) ||
        (after && s > position + *after) ||
        (chunk && (s < begin || s >= begin + *chunk)) ||
        (!lengths.empty() && s >= lengths[i]);
  }

  /// (B * H, T, S)
  torch::Tensor hidden() const {
    auto result = torch::zeros({kBatch, kQueryHeads, T, S}, torch::kBool);
    auto at = result.accessor<bool, 4>();
    for (int64_t b = 0; b < kBatch; ++b) {
      for (int64_t h = 0; h < kQueryHeads; ++h) {
        for (int64_t t = 0; t < T; ++t) {
          for (int64_t s = 0; s < S; ++s) {
            at[b][h][t][s] = hides(b, t, s);
          }
        }
      }
    }
    return result.flatten(0, 1);
  }

  Options options(Kernel kernel) const {
    auto options = Options()
                       .kernel(kernel)
                       .causal(causal)
                       .window_after(after)
                       .chunk(chunk)
                       .enable_gqa(true);
    if (window > 0) {
      options.window(window);
    }
    if (!lengths.empty()) {
      options.key_lengths(torch::tensor(lengths));
    }
    if (!offsets.empty()) {
      options.query_offsets(torch::tensor(offsets));
    }
    return options;
  }
};

std::vector<Visible> every_kind() {
  return {
      {"window to both sides", 20, 20, false, 5, {}, {}, 3},
      {"window ahead alone", 6, 40, false, 0, {40, 39, 3}, {}, 2},
      {"chunks", 20, 20, false, 0, {}, {}, std::nullopt, 6},
      {"causal chunks of caches",
       3,
       30,
       true,
       0,
       {30, 12, 3},
       {27, 9, 0},
       std::nullopt,
       8},
      {"causal window", 20, 20, true, 5, {}, {}},
      {"causal window of one", 7, 7, true, 1, {}, {}},
      {"causal window, queries at the end", 6, 40, true, 17, {}, {}},
      {"lengths, one of them 0", 9, 12, false, 0, {12, 5, 0}, {}},
      {"lengths beyond the keys", 9, 12, false, 0, {12, 50, 3}, {}},
      {"causal and lengths", 12, 12, true, 0, {12, 5, 1}, {}},
      {"a cache of sequences of different lengths",
       3,
       30,
       true,
       0,
       {30, 12, 3},
       {27, 9, 0}},
      {"the same for a single token", 1, 30, true, 0, {30, 12, 1}, {29, 11, 0}},
      {"the same with a window", 3, 30, true, 4, {30, 12, 3}, {27, 9, 0}},
      {"offsets before the first key", 4, 6, true, 0, {}, {0, -2, 2}},
  };
}

struct Operands {
  torch::Tensor query;
  torch::Tensor key;
  torch::Tensor value;

  Operands(int64_t T, int64_t S, torch::ScalarType dtype)
      : query(torch::randn({kBatch, kQueryHeads, T, kSize}, dtype)),
        key(torch::randn({kBatch, kSharedHeads, S, kSize}, dtype)),
        value(torch::randn({kBatch, kSharedHeads, S, kSize}, dtype)) {}

  torch::Tensor attend(const Options& options) const {
    return F::scaled_dot_product_attention(query, key, value, options);
  }

  torch::Tensor expected(const Visible& visible) const {
    const auto shared = [](const torch::Tensor& x) {
      return x.repeat_interleave(kQueryHeads / kSharedHeads, 1).flatten(0, 1);
    };
    return attention_by_loops(
               query.flatten(0, 1),
               shared(key),
               shared(value),
               visible.hidden(),
               1 / std::sqrt(static_cast<double>(kSize)))
        .view_as(query);
  }
};

} // namespace

TEST_CASE("Window, lengths and offsets hide what plain loops hide") {
  const auto kernel =
      GENERATE(Kernel::kReference, Kernel::kFused, Kernel::kAuto);
  torch::manual_seed(1);
  for (const auto& visible : every_kind()) {
    CAPTURE(kernel, visible.name);
    const Operands tensors(visible.T, visible.S, torch::kDouble);
    CHECK_THAT(
        tensors.attend(visible.options(kernel)),
        IsCloseTo(tensors.expected(visible)));
  }
}

TEST_CASE("Gradients of what is hidden are zero, the others the reference's") {
  torch::manual_seed(2);
  for (const auto& visible : every_kind()) {
    CAPTURE(visible.name);
    Operands tensors(visible.T, visible.S, torch::kDouble);
    const auto grad = torch::randn_like(tensors.query);
    const auto gradients = [&](Kernel kernel) {
      for (auto* x : {&tensors.query, &tensors.key, &tensors.value}) {
        *x = x->detach().requires_grad_();
      }
      return torch::autograd::grad(
          {tensors.attend(visible.options(kernel))},
          {tensors.query, tensors.key, tensors.value},
          {grad});
    };
    const auto fused = gradients(Kernel::kFused);
    const auto reference = gradients(Kernel::kReference);
    for (size_t i = 0; i < 3; ++i) {
      CHECK_THAT(fused[i], IsCloseTo(reference[i]));
    }
  }
}

TEST_CASE("Padding may hold anything, NaN as well") {
  const auto dtype = GENERATE(torch::kFloat, torch::kBFloat16, torch::kHalf);
  torch::manual_seed(3);
  CAPTURE(dtype);
  const Visible visible{"", 5, 12, true, 0, {12, 7, 5}, {7, 2, 0}};
  Operands tensors(visible.T, visible.S, dtype);
  const auto expected = tensors.attend(visible.options(Kernel::kFused));
  for (int64_t b = 0; b < kBatch; ++b) {
    const auto length = visible.lengths[static_cast<size_t>(b)];
    tensors.key[b].slice(1, length).fill_(
        std::numeric_limits<double>::quiet_NaN());
    tensors.value[b].slice(1, length).fill_(
        std::numeric_limits<double>::infinity());
  }
  CHECK_THAT(
      tensors.attend(visible.options(Kernel::kFused)), IsEqualTo(expected));
}

TEST_CASE("All bytes but 0 of a mask hide") {
  const int64_t S = GENERATE(5, 50, 70);
  constexpr int64_t T = 40;
  torch::manual_seed(4);
  CAPTURE(S);
  const auto bytes = torch::randint(0, 256, {T, S}, torch::kByte)
                         .mul(torch::rand({T, S}).lt(0.3));
  const auto hides = bytes.ne(0);
  const Operands tensors(T, S, torch::kFloat);
  const auto attend = [&](const torch::Tensor& mask) {
    return tensors.attend(
        Options().mask(mask).enable_gqa(true).kernel(Kernel::kFused));
  };
  CHECK_THAT(attend(bytes.view(torch::kBool)), IsEqualTo(attend(hides)));
  const auto sees = torch::where(hides, 0, 254).to(torch::kByte);
  const auto options =
      BlockMaskOptions(T, S).query_offsets(torch::zeros({1}, torch::kLong));
  const BlockMask blocks(
      MaskMod::blocks(sees.view(torch::kBool), 1, 1), options);
  CHECK_THAT(blocks.hidden()[0][0], IsEqualTo(hides));
  const BlockMask by_function(
      MaskMod::function([&](const auto& /*b*/,
                            const auto& /*h*/,
                            const auto& q,
                            const auto& k) {
        return sees.index({q, k}).view(torch::kBool);
      }),
      options);
  CHECK_THAT(by_function.hidden()[0][0], IsEqualTo(hides));
}

TEST_CASE("A module with a window equals one that is masked by hand") {
  const auto kernel =
      GENERATE(Kernel::kReference, Kernel::kFused, Kernel::kAuto);
  CAPTURE(kernel);
  torch::manual_seed(4);
  MultiHeadAttention attention(MultiHeadAttentionOptions(12, 16, 40, 4)
                                   .num_kv_heads(2)
                                   .window(6)
                                   .kernel(kernel));
  const auto x = torch::randn({2, 33, 12});
  const auto heads = [&](const torch::Tensor& projected) {
    return projected.view({2, 33, -1, 4}).transpose(1, 2);
  };
  const auto ones = torch::ones({33, 33}, torch::kBool);
  const auto context = F::scaled_dot_product_attention(
      heads(attention->W_query(x)),
      heads(attention->W_key(x)).repeat_interleave(2, 1),
      heads(attention->W_value(x)).repeat_interleave(2, 1),
      Options()
          .kernel(Kernel::kReference)
          .mask(ones.triu(1).logical_or(ones.tril(-6))));
  CHECK_THAT(
      attention(x),
      IsCloseTo(attention->out_proj(context.transpose(1, 2).flatten(2))));
}

TEST_CASE("A module without the buffer `mask` computes the same") {
  torch::manual_seed(5);
  const auto options = MultiHeadAttentionOptions(8, 8, 16, 2);
  MultiHeadAttention with_mask(options);
  torch::manual_seed(5);
  MultiHeadAttention without(
      MultiHeadAttentionOptions(options).register_mask(false));
  const auto x = torch::randn({2, 9, 8});
  CHECK_THAT(without(x), IsEqualTo(with_mask(x)));
  CHECK(without->named_buffers().is_empty());
  CHECK_FALSE(without->mask.defined());
}

TEST_CASE("Lengths and offsets may be integers of any dtype") {
  const Operands tensors(4, 6, torch::kFloat);
  const auto kernel = GENERATE(Kernel::kReference, Kernel::kFused);
  const auto attend = [&](torch::ScalarType dtype) {
    return tensors.attend(
        Options()
            .kernel(kernel)
            .enable_gqa(true)
            .causal(true)
            .key_lengths(torch::tensor({6, 3, 5}).to(dtype))
            .query_offsets(torch::tensor({2, 0, 1}).to(dtype)));
  };
  const auto expected = attend(torch::kLong);
  for (const auto dtype :
       {torch::kByte,
        torch::kChar,
        torch::kShort,
        torch::kInt,
        torch::kUInt16,
        torch::kUInt32,
        torch::kUInt64}) {
    CAPTURE(dtype);
    CHECK_THAT(attend(dtype), IsEqualTo(expected));
  }
  // As a length, -1 of int64 would be 2^64 - 1 of uint64.
  const auto most = torch::full({3}, -1).view(torch::kUInt64);
  CHECK_THAT(
      tensors.attend(
          Options().kernel(kernel).enable_gqa(true).key_lengths(most)),
      IsEqualTo(tensors.attend(Options().kernel(kernel).enable_gqa(true))));
}

TEST_CASE("What hides keys is refused by name if it does not fit") {
  const Operands tensors(4, 6, torch::kFloat);
  THROWS_WITH(
      tensors.attend(Options().enable_gqa(true).window(0)),
      "expected a window > 0, but got 0");
  THROWS_WITH(
      tensors.attend(Options().enable_gqa(true).key_lengths(torch::ones({3}))),
      "expected key_lengths of an integer dtype and shape (B) = [3], but got "
      "Float");
  THROWS_WITH(
      tensors.attend(Options().enable_gqa(true).query_offsets(
          torch::zeros({2}, torch::kLong))),
      "expected query_offsets of an integer dtype and shape (B) = [3], but got "
      "Long of shape [2]");
  THROWS_WITH(
      F::scaled_dot_product_attention(
          torch::randn({2, 8}),
          torch::randn({2, 8}),
          torch::randn({2, 8}),
          Options().key_lengths(torch::tensor({int64_t{2}}))),
      "expected, with key_lengths, a query of shape (B, T, D) or (B, H, T, D)");
  THROWS_WITH(
      F::scaled_dot_product_attention(
          tensors.query,
          tensors.key.repeat({1, 2, 1, 1}).slice(1, 0, 3),
          tensors.value.repeat({1, 2, 1, 1}).slice(1, 0, 3),
          Options().enable_gqa(true)),
      "H divisible by G, but got query [3, 4, 4, 8], key [3, 3, 6, 8]");
  THROWS_WITH(tensors.attend(Options()), "leading dimensions that broadcast");
  THROWS_WITH(
      MultiHeadAttention(MultiHeadAttentionOptions(4, 4, 4, 2).window(-1)),
      "MultiHeadAttention: expected a window > 0, but got -1");
}

} // namespace hidden_keys_test
