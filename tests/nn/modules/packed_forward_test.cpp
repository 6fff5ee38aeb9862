// Modules on sequences of different lengths, packed without padding.

#include <support/close.h>
#include <support/test.h>

#include <functional>
#include <string>
#include <vector>

namespace packed_forward_test {

using namespace torch_attention;
using namespace torch_attention::testing;

namespace {

constexpr int64_t kIn = 6;
const std::vector<int64_t> kLengths = {7, 1, 0, 12, 5};

torch::Tensor starts(torch::ScalarType dtype = torch::kInt) {
  return torch::tensor({0, 7, 8, 8, 20, 25}).to(dtype);
}

torch::Tensor draw_input() {
  torch::manual_seed(5);
  return torch::randn({25, kIn}, torch::kDouble);
}

struct Subject {
  std::string name;
  std::function<torch::Tensor(const torch::Tensor&, const ForwardOptions&)>
      forward;
};

template <typename Holder>
Subject subject(const std::string& name, Holder module) {
  module->to(torch::kDouble);
  module->eval();
  return {
      name,
      [module](const torch::Tensor& x, const ForwardOptions& call) mutable {
        return module->forward(x, call);
      }};
}

std::vector<Subject> every_module(Kernel kernel) {
  torch::manual_seed(3);
  const auto heads = [&] {
    // No sequence is longer, but all together are.
    return MultiHeadAttentionOptions(kIn, 8, 12, 4)
        .num_kv_heads(2)
        .kernel(kernel);
  };
  const auto rotary = [&](const RotaryOptions& options) {
    return MultiHeadAttention(heads().rotary(options));
  };
  return {
      subject(
          "SelfAttentionV1",
          SelfAttentionV1(SelfAttentionOptions(kIn, 4).kernel(kernel))),
      subject(
          "SelfAttentionV2",
          SelfAttentionV2(SelfAttentionOptions(kIn, 4).kernel(kernel))),
      subject(
          "CausalAttention",
          CausalAttention(CausalAttentionOptions(kIn, 4, 12).kernel(kernel))),
      subject(
          "MultiHeadAttentionWrapper",
          MultiHeadAttentionWrapper(
              MultiHeadAttentionWrapperOptions(kIn, 4, 12, 3).kernel(kernel))),
      subject("plain", MultiHeadAttention(heads())),
      subject("both ways", MultiHeadAttention(heads().causal(false))),
      subject("rotary", rotary(RotaryOptions())),
      subject("alibi", MultiHeadAttention(heads().alibi(true))),
      subject("window", MultiHeadAttention(heads().window(3))),
      subject(
          "chunks with a temperature",
          MultiHeadAttention(
              heads().chunk(4).temperature(TemperatureOptions(2).scale(0.5)))),
      subject(
          "norms, sinks, gate",
          MultiHeadAttention(heads()
                                 .qk_norm(HeadNormOptions())
                                 .sinks(true)
                                 .output_gate(OutputGateOptions())
                                 .softcap(9))),
      subject(
          "LatentAttention",
          LatentAttention(LatentAttentionOptions(kIn, 8, 12, 2)
                              .kv_rank(6)
                              .nope_dim(4)
                              .rope_dim(4)
                              .value_dim(3)
                              .kernel(kernel)))};
}

/// Calls `of_sequence` with the place of each, its first token and their
/// number.
void each_sequence(
    const std::function<void(int64_t, int64_t, int64_t)>& of_sequence) {
  int64_t first = 0;
  for (size_t b = 0; b < kLengths.size(); ++b) {
    of_sequence(static_cast<int64_t>(b), first, kLengths[b]);
    first += kLengths[b];
  }
}

} // namespace

TEST_CASE("Packed sequences give what they give alone, gradients too") {
  const auto kernel =
      GENERATE(Kernel::kReference, Kernel::kFused, Kernel::kAuto);
  for (auto& [name, forward] : every_module(kernel)) {
    CAPTURE(name, kernel);
    const auto x = draw_input().requires_grad_();
    const auto output =
        forward(x, ForwardOptions().cu_seqlens(starts(torch::kLong)));
    std::vector<torch::Tensor> alone;
    const auto& forward_alone = forward;
    each_sequence([&](int64_t, int64_t first, int64_t n) {
      alone.push_back(
          forward_alone(x.narrow(0, first, n).unsqueeze(0), {}).squeeze(0));
    });
    const auto expected = torch::cat(alone);
    CHECK_THAT(output, IsCloseTo(expected));
    const auto gradient_of = [&](const torch::Tensor& y) {
      return torch::autograd::grad({y.square().sum()}, {x})[0];
    };
    CHECK_THAT(gradient_of(output), IsCloseTo(gradient_of(expected)));
    CHECK_THAT(
        forward(x.unsqueeze(0), ForwardOptions().cu_seqlens(starts())),
        IsEqualTo(output.unsqueeze(0)));
  }
}

TEST_CASE("Masks and biases of packed sequences are those of a padded batch") {
  const auto kernel = GENERATE(Kernel::kReference, Kernel::kFused);
  const auto B = static_cast<int64_t>(kLengths.size());
  torch::manual_seed(8);
  const auto mask = torch::rand({B, 1, 12, 12}) < 0.2;
  const auto bias = torch::randn({1, 3, 12, 12}, torch::kDouble);
  MultiHeadAttention attention(
      MultiHeadAttentionOptions(kIn, 9, 12, 3).causal(false).kernel(kernel));
  MultiHeadAttentionWrapper wrapper(
      MultiHeadAttentionWrapperOptions(kIn, 3, 12, 3).kernel(kernel));
  CausalAttention single(CausalAttentionOptions(kIn, 4, 12).kernel(kernel));
  const auto x = draw_input();
  auto padded = torch::zeros({B, 12, kIn}, torch::kDouble);
  each_sequence([&](int64_t b, int64_t first, int64_t n) {
    padded[b].narrow(0, 0, n).copy_(x.narrow(0, first, n));
  });
  const auto lengths = torch::tensor(kLengths);
  const auto check = [&](auto module, const ForwardOptions& call) {
    module->to(torch::kDouble);
    const auto output =
        module->forward(x, ForwardOptions(call).cu_seqlens(starts()));
    const auto expected =
        module->forward(padded, ForwardOptions(call).key_lengths(lengths));
    each_sequence([&](int64_t b, int64_t first, int64_t n) {
      CHECK_THAT(
          output.narrow(0, first, n), IsCloseTo(expected[b].narrow(0, 0, n)));
    });
  };
  const auto call = ForwardOptions().mask(mask).bias(bias);
  check(attention, call);
  check(wrapper, call);
  check(
      single,
      ForwardOptions().mask(mask.squeeze(1)).bias(bias.slice(1, 0, 1)[0]));
}

TEST_CASE("Packed sequences cross over to packed contexts") {
  const auto kernel = GENERATE(Kernel::kReference, Kernel::kFused);
  torch::manual_seed(9);
  CrossAttention attention(CrossAttentionOptions(kIn, 4, 8, 2).kernel(kernel));
  attention->to(torch::kDouble);
  const auto x = draw_input();
  // The second sequence has no context, the third no tokens.
  const std::vector<int64_t> context_lengths = {3, 0, 11, 1, 4};
  const auto context = torch::randn({19, 4}, torch::kDouble);
  const auto context_starts = torch::tensor({0, 3, 3, 14, 15, 19});
  const auto output = attention->forward(
      x,
      context,
      ForwardOptions().cu_seqlens(starts()).cu_seqlens_k(context_starts));
  CHECK_THAT(output, HasShape({25, 8}));
  int64_t first_key = 0;
  each_sequence([&](int64_t b, int64_t first, int64_t n) {
    const auto S = context_lengths[static_cast<size_t>(b)];
    const auto alone = attention->forward(
        x.narrow(0, first, n).unsqueeze(0),
        context.narrow(0, first_key, S).unsqueeze(0));
    CHECK_THAT(output.narrow(0, first, n), IsCloseTo(alone[0]));
    first_key += S;
  });
  // Nothing is attended to: only the bias of the projection is left.
  CHECK_THAT(output[7], IsCloseTo(attention->out_proj->bias));
}

TEST_CASE("The longest of packed sequences decides how all are rotated") {
  const auto scaling =
      GENERATE(RotaryScaling::kDynamic, RotaryScaling::kLongRope);
  auto rotary = RotaryOptions().scaling(scaling).original_context_length(6);
  if (scaling == RotaryScaling::kDynamic) {
    rotary.factor(2);
  } else {
    rotary.short_factors({1, 1}).long_factors({2, 3});
  }
  torch::manual_seed(12);
  MultiHeadAttention attention(
      MultiHeadAttentionOptions(kIn, 8, 12, 2).rotary(rotary));
  attention->to(torch::kDouble);
  const auto x = draw_input();
  const auto B = static_cast<int64_t>(kLengths.size());
  auto padded = torch::zeros({B, 12, kIn}, torch::kDouble);
  each_sequence([&](int64_t b, int64_t first, int64_t n) {
    padded[b].narrow(0, 0, n).copy_(x.narrow(0, first, n));
  });
  const auto output =
      attention->forward(x, ForwardOptions().cu_seqlens(starts()));
  const auto expected = attention->forward(
      padded, ForwardOptions().key_lengths(torch::tensor(kLengths)));
  each_sequence([&](int64_t b, int64_t first, int64_t n) {
    CHECK_THAT(
        output.narrow(0, first, n), IsCloseTo(expected[b].narrow(0, 0, n)));
  });
  // Alone the last one has the table of short texts.
  const auto last = attention->forward(x.narrow(0, 20, 5).unsqueeze(0));
  CHECK((output.narrow(0, 20, 5) - last[0]).abs().max().item<double>() > 1e-5);
}

TEST_CASE("Packed tokens go by the positions of a call") {
  const auto kernel = GENERATE(Kernel::kReference, Kernel::kFused);
  torch::manual_seed(10);
  MultiHeadAttention attention(MultiHeadAttentionOptions(kIn, 8, 12, 2)
                                   .rotary(RotaryOptions())
                                   .kernel(kernel));
  attention->to(torch::kDouble);
  const auto x = draw_input();
  const auto call = ForwardOptions().cu_seqlens(starts());
  const auto positions = torch::arange(25) * 3;
  const auto output =
      attention->forward(x, ForwardOptions(call).positions(positions));
  const auto pairs = torch::arange(2, torch::kDouble) * -0.5;
  const auto angles =
      positions.to(torch::kDouble).unsqueeze(1) * torch::pow(10000.0, pairs);
  CHECK_THAT(
      attention->forward(
          x,
          ForwardOptions(call)
              .rotary_cos(angles.cos())
              .rotary_sin(angles.sin())),
      IsCloseTo(output, Tolerance(1e-5, 1e-5)));
  each_sequence([&](int64_t, int64_t first, int64_t n) {
    const auto alone = attention->forward(
        x.narrow(0, first, n).unsqueeze(0),
        ForwardOptions().positions(positions.narrow(0, first, n)));
    CHECK_THAT(output.narrow(0, first, n), IsCloseTo(alone[0]));
  });
}

TEST_CASE("Packed calls that do not fit are refused by name") {
  MultiHeadAttention attention(kIn, 8, 12, 0.0, 2);
  MultiHeadAttention alibi(
      MultiHeadAttentionOptions(kIn, 8, 12, 2).alibi(true));
  CrossAttention cross(CrossAttentionOptions(kIn, kIn, 8, 2));
  const auto x = draw_input().to(torch::kFloat);
  const auto packed = ForwardOptions().cu_seqlens(starts());
  const auto refused = [&](const torch::Tensor& y,
                           const ForwardOptions& call,
                           const char* text) {
    THROWS_WITH(attention->forward(y, call), text);
  };
  refused(
      x,
      ForwardOptions().cu_seqlens(torch::tensor({0, 13, 25})),
      "MultiHeadAttention: expected at most 12 tokens (context_length), but "
      "got 13 in one of the sequences");
  refused(
      x,
      ForwardOptions().cu_seqlens(torch::tensor({0, 12, 24})),
      "MultiHeadAttention: expected cu_seqlens from 0 to the number of tokens, "
      "25, but got 0 to 24");
  refused(
      torch::stack({x, x}),
      packed,
      "MultiHeadAttention: expected, with cu_seqlens, tokens of shape (N, "
      "d_in) or (1, N, d_in), but got [2, 25, 6]");
  refused(
      x,
      ForwardOptions(packed).key_padding_mask(
          torch::zeros({5, 12}, torch::kBool)),
      "MultiHeadAttention: expected no key_padding_mask beside cu_seqlens");
  refused(
      x,
      ForwardOptions(packed).cu_seqlens_k(starts()),
      "MultiHeadAttention: expected cu_seqlens alone");
  refused(x, {}, "MultiHeadAttention: expected input of shape (B, T, 6)");
  THROWS_WITH(
      alibi->forward(x, ForwardOptions(packed).positions(torch::arange(25))),
      "MultiHeadAttention: expected no positions beside alibi or chunk, where "
      "sequences are packed (cu_seqlens)");
  for (const auto& tokens : {x, x.unsqueeze(0)}) {
    THROWS_WITH(
        attention->forward_with_weights(tokens, packed),
        "MultiHeadAttention: expected one sequence or a padded batch, but got "
        "cu_seqlens");
  }
  THROWS_WITH(
      cross->forward(x, x, packed),
      "CrossAttention: expected cu_seqlens of the input and cu_seqlens_k of "
      "the context, or neither, but got cu_seqlens alone");
}

} // namespace packed_forward_test
