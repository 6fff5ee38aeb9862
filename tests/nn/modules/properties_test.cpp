#include <support/attention_by_loops.h>
#include <support/close.h>
#include <support/memory_counter.h>
#include <support/test.h>

#include <functional>

namespace properties_test {

using namespace torch_attention;
using namespace torch_attention::testing;

namespace {

constexpr auto kKernels = {Kernel::kReference, Kernel::kFused, Kernel::kAuto};

/// A module and the shape of its input.
struct Subject {
  std::string name;
  torch::nn::AnyModule module;
  std::vector<int64_t> input;

  torch::Tensor forward(const torch::Tensor& x) {
    return module.forward<torch::Tensor>(x);
  }
};

/// Every class, small, in double, in evaluation.
std::vector<Subject> every_module(Kernel kernel, bool causal = true) {
  std::vector<Subject> subjects = {
      {"CausalAttention",
       torch::nn::AnyModule(CausalAttention(
           CausalAttentionOptions(3, 4, 6).qkv_bias(true).causal(causal).kernel(
               kernel))),
       {2, 5, 3}},
      {"MultiHeadAttentionWrapper",
       torch::nn::AnyModule(MultiHeadAttentionWrapper(
           MultiHeadAttentionWrapperOptions(3, 2, 6, 2)
               .causal(causal)
               .kernel(kernel))),
       {2, 5, 3}},
      {"MultiHeadAttention",
       torch::nn::AnyModule(
           MultiHeadAttention(MultiHeadAttentionOptions(3, 4, 6, 2)
                                  .qkv_bias(true)
                                  .causal(causal)
                                  .kernel(kernel))),
       {2, 5, 3}},
      {"MultiHeadAttention, grouped heads and a scale",
       torch::nn::AnyModule(
           MultiHeadAttention(MultiHeadAttentionOptions(3, 8, 6, 4)
                                  .num_kv_heads(2)
                                  .scale(0.3)
                                  .causal(causal)
                                  .kernel(kernel))),
       {2, 5, 3}}};
  if (!causal) {
    subjects.push_back(
        {"SelfAttentionV1",
         torch::nn::AnyModule(
             SelfAttentionV1(SelfAttentionOptions(3, 4).kernel(kernel))),
         {5, 3}});
    subjects.push_back(
        {"SelfAttentionV2",
         torch::nn::AnyModule(SelfAttentionV2(
             SelfAttentionOptions(3, 4).qkv_bias(true).kernel(kernel))),
         {5, 3}});
  }
  for (auto& subject : subjects) {
    subject.module.ptr()->to(torch::kDouble);
    subject.module.ptr()->eval();
  }
  return subjects;
}

/// Checks the gradient of the sum of squares of `forward` with respect to `x`
/// by central differences, element by element.
void check_gradient(
    const std::function<torch::Tensor()>& forward,
    torch::Tensor x) {
  constexpr double kStep = 1e-5;
  const auto loss = [&] { return forward().pow(2).sum(); };
  const auto gradient = torch::autograd::grad({loss()}, {x})[0];
  torch::NoGradGuard no_grad;
  auto flat = x.view(-1);
  auto numeric = torch::zeros_like(flat);
  for (int64_t i = 0; i < flat.numel(); ++i) {
    const auto value = flat[i].item<double>();
    flat[i] = value + kStep;
    const auto above = loss();
    flat[i] = value - kStep;
    const auto below = loss();
    flat[i] = value;
    numeric[i] = (above - below) / (2 * kStep);
  }
  CHECK_THAT(
      gradient,
      IsCloseTo(numeric.view_as(x), Tolerance().rtol(1e-6).atol(1e-7)));
}

} // namespace

TEST_CASE("Gradients equal finite differences in double") {
  const auto kernel = GENERATE(values(kKernels));
  const auto causal = GENERATE(true, false);
  torch::manual_seed(1);
  for (auto& subject : every_module(kernel, causal)) {
    CAPTURE(subject.name, kernel, causal);
    auto x = torch::randn(subject.input, torch::kDouble).requires_grad_();
    const auto forward = [&] { return subject.forward(x); };
    check_gradient(forward, x);
    for (auto& parameter : subject.module.ptr()->parameters()) {
      check_gradient(forward, parameter);
    }
  }
}

TEST_CASE("Double backward works in the reference kernel") {
  torch::manual_seed(2);
  for (auto& subject : every_module(Kernel::kReference)) {
    CAPTURE(subject.name);
    auto x = torch::randn(subject.input, torch::kDouble).requires_grad_();
    check_gradient(
        [&] {
          torch::AutoGradMode with_grad(true);
          return torch::autograd::grad(
              {subject.forward(x).pow(2).sum()},
              {x},
              {},
              /*retain_graph=*/true,
              /*create_graph=*/true)[0];
        },
        x);
  }
}

TEST_CASE("The future does not change the past, bit for bit") {
  const auto kernel = GENERATE(values(kKernels));
  const auto dtype = GENERATE(torch::kFloat, torch::kDouble, torch::kBFloat16);
  torch::manual_seed(3);
  CAPTURE(kernel, dtype);
  constexpr int64_t kTokens = 40;
  MultiHeadAttention multi_head(
      MultiHeadAttentionOptions(16, 16, kTokens, 4).kernel(kernel));
  CausalAttention single(CausalAttentionOptions(16, 8, kTokens).kernel(kernel));
  MultiHeadAttention unmasked(MultiHeadAttentionOptions(16, 16, kTokens, 4)
                                  .causal(false)
                                  .kernel(kernel));
  multi_head->to(dtype);
  single->to(dtype);
  unmasked->to(dtype);
  const auto x = torch::randn({2, kTokens, 16}, torch::kFloat).to(dtype);
  for (const int64_t t : {0, 1, 15, 16, 31, 38}) {
    CAPTURE(t);
    auto changed = x.clone();
    changed.slice(1, t + 1).normal_();
    const auto past = [&](const torch::Tensor& y) {
      return y.slice(1, 0, t + 1);
    };
    CHECK_THAT(past(multi_head(changed)), IsEqualTo(past(multi_head(x))));
    CHECK_THAT(past(single(changed)), IsEqualTo(past(single(x))));
    // Without the mask the past must change, or the test says nothing.
    CHECK_FALSE(past(unmasked(changed)).equal(past(unmasked(x))));
  }
}

TEST_CASE("The order of the batch is the order of the results") {
  const auto kernel = GENERATE(values(kKernels));
  torch::manual_seed(4);
  const auto order = torch::tensor({2, 0, 1});
  for (auto& subject : every_module(kernel)) {
    CAPTURE(subject.name, kernel);
    const auto x = torch::randn({3, 5, 3}, torch::kDouble);
    CHECK_THAT(
        subject.forward(x.index_select(0, order)),
        IsCloseTo(
            subject.forward(x).index_select(0, order),
            Tolerance(1e-14, 1e-14)));
  }
}

TEST_CASE("Non-contiguous input gives what its copy gives") {
  const auto kernel = GENERATE(values(kKernels));
  torch::manual_seed(5);
  for (auto& subject : every_module(kernel)) {
    CAPTURE(subject.name, kernel);
    const auto x = torch::randn({3, 5, 2}, torch::kDouble).permute({2, 1, 0});
    REQUIRE_FALSE(x.is_contiguous());
    CHECK_THAT(
        subject.forward(x),
        IsCloseTo(subject.forward(x.contiguous()), Tolerance(1e-14, 1e-14)));
  }
}

TEST_CASE("Random shapes equal plain loops in double") {
  const auto kernel = GENERATE(values(kKernels));
  const auto seed = GENERATE(range(0, 12));
  torch::manual_seed(100 + static_cast<uint64_t>(seed));
  const auto draw = [](int64_t low, int64_t high) {
    return torch::randint(low, high + 1, {1}).item<int64_t>();
  };
  const auto B = draw(1, 3);
  const auto T = draw(1, 20);
  const auto H = draw(1, 6);
  const auto D = draw(1, 9);
  const auto d_in = draw(1, 10);
  const bool causal = draw(0, 1) == 1;
  CAPTURE(kernel, B, T, H, D, d_in, causal);
  MultiHeadAttention attention(
      MultiHeadAttentionOptions(d_in, H * D, T + draw(0, 3), H)
          .qkv_bias(draw(0, 1) == 1)
          .causal(causal)
          .kernel(kernel));
  attention->to(torch::kDouble);
  const auto x = torch::randn({B, T, d_in}, torch::kDouble);
  const auto heads = [&](torch::nn::Linear& linear) {
    return linear(x).view({B, T, H, D}).transpose(1, 2).reshape({B * H, T, D});
  };
  const auto hidden = causal ? functional::causal_mask(T, T)
                             : torch::zeros({T, T}, torch::kBool);
  const auto context = attention_by_loops(
                           heads(attention->W_query),
                           heads(attention->W_key),
                           heads(attention->W_value),
                           hidden.expand({B * H, T, T}),
                           1 / std::sqrt(static_cast<double>(D)))
                           .view({B, H, T, D})
                           .transpose(1, 2)
                           .reshape({B, T, H * D});
  CHECK_THAT(attention(x), IsCloseTo(attention->out_proj(context)));
}

TEST_CASE("The wrapper is heads of CausalAttention side by side") {
  const auto kernel = GENERATE(values(kKernels));
  torch::manual_seed(6);
  MultiHeadAttentionWrapper wrapper(MultiHeadAttentionWrapperOptions(5, 3, 8, 4)
                                        .qkv_bias(true)
                                        .kernel(kernel));
  const auto x = torch::randn({2, 7, 5});
  const auto output = wrapper(x);
  for (int64_t i = 0; i < 4; ++i) {
    auto& head =
        *wrapper->heads->ptr(static_cast<size_t>(i))->as<CausalAttentionImpl>();
    CHECK_THAT(output.slice(2, 3 * i, 3 * i + 3), IsEqualTo(head.forward(x)));
  }
}

TEST_CASE("MultiHeadAttention equals the wrapper for block-wise weights") {
  const auto kernel = GENERATE(values(kKernels));
  torch::manual_seed(7);
  constexpr int64_t kHeads = 3;
  constexpr int64_t kHead = 4;
  constexpr int64_t kOut = kHeads * kHead;
  MultiHeadAttentionWrapper wrapper(
      MultiHeadAttentionWrapperOptions(5, kHead, 8, kHeads)
          .qkv_bias(true)
          .kernel(kernel));
  MultiHeadAttention multi_head(MultiHeadAttentionOptions(5, kOut, 8, kHeads)
                                    .qkv_bias(true)
                                    .kernel(kernel));
  {
    torch::NoGradGuard no_grad;
    for (int64_t i = 0; i < kHeads; ++i) {
      auto& head = *wrapper->heads->ptr(static_cast<size_t>(i))
                        ->as<CausalAttentionImpl>();
      const auto block = [&](torch::Tensor& stacked) {
        return stacked.slice(0, i * kHead, (i + 1) * kHead);
      };
      block(multi_head->W_query->weight).copy_(head.W_query->weight);
      block(multi_head->W_query->bias).copy_(head.W_query->bias);
      block(multi_head->W_key->weight).copy_(head.W_key->weight);
      block(multi_head->W_key->bias).copy_(head.W_key->bias);
      block(multi_head->W_value->weight).copy_(head.W_value->weight);
      block(multi_head->W_value->bias).copy_(head.W_value->bias);
    }
    multi_head->out_proj->weight.copy_(torch::eye(kOut));
    multi_head->out_proj->bias.zero_();
  }
  const auto x = torch::randn({2, 7, 5});
  CHECK_THAT(multi_head(x), IsCloseTo(wrapper(x)));
}

TEST_CASE("Fused equals reference, gradients included") {
  const auto T = GENERATE(1, 2, 16, 33, 129);
  const auto dtype = GENERATE(torch::kFloat, torch::kDouble, torch::kBFloat16);
  CAPTURE(T, dtype);
  const auto run = [&](Kernel kernel) {
    torch::manual_seed(8);
    MultiHeadAttention attention(MultiHeadAttentionOptions(24, 32, 130, 4)
                                     .qkv_bias(true)
                                     .kernel(kernel));
    attention->to(dtype);
    const auto x =
        torch::randn({2, T, 24}, torch::kFloat).to(dtype).requires_grad_();
    const auto output = attention(x);
    output.sum().backward();
    return std::make_pair(output.detach(), x.grad());
  };
  const auto [fused, fused_gradient] = run(Kernel::kFused);
  const auto [reference, reference_gradient] = run(Kernel::kReference);
  CHECK_THAT(
      fused,
      IsCloseTo(
          reference,
          dtype == torch::kBFloat16 ? Tolerance(1.6e-2, 8e-3) : Tolerance()));
  CHECK_THAT(
      fused_gradient,
      IsCloseTo(
          reference_gradient,
          dtype == torch::kBFloat16 ? Tolerance(1.6e-2, 2e-2) : Tolerance()));
}

TEST_CASE("The fused kernel forms no T x T tensor, forward or backward") {
  constexpr int64_t kTokens = 2048;
  constexpr size_t kSquare = sizeof(float) * kTokens * kTokens;
  torch::manual_seed(9);
  const auto threads = at::get_num_threads();
  // LibTorch's kernel has buffers of a fixed size for each thread.
  at::set_num_threads(2);
  const auto largest_allocation = [&](Kernel kernel) {
    MultiHeadAttention attention(
        MultiHeadAttentionOptions(64, 64, kTokens, 4).kernel(kernel));
    const auto x = torch::randn({1, kTokens, 64}).requires_grad_();
    MemoryCounter counter;
    attention(x).sum().backward();
    return counter.largest();
  };
  CHECK(largest_allocation(Kernel::kFused) < kSquare / 4);
  CHECK(largest_allocation(Kernel::kAuto) < kSquare / 4);
  // Four heads at once; were it less, the counter would not count.
  CHECK(largest_allocation(Kernel::kReference) >= 4 * kSquare);
  at::set_num_threads(threads);
}

} // namespace properties_test
