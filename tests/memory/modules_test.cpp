// Modules and functions whose memory runs out.

#include <memory/computation.h>

#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

namespace modules_test {

using namespace torch_attention;
using namespace torch_attention::testing;
namespace F = torch_attention::functional;

namespace {

MultiHeadAttentionOptions everything() {
  return MultiHeadAttentionOptions(6, 8, 16, 4)
      .num_kv_heads(2)
      .qkv_bias(true)
      .window(5)
      .softcap(3)
      .alibi(true)
      .sinks(true)
      .clip_qkv(2)
      .temperature(TemperatureOptions(4))
      .rotary(RotaryOptions());
}

CrossAttentionOptions across() {
  return CrossAttentionOptions(6, 5, 8, 4)
      .num_kv_heads(2)
      .qkv_bias(true)
      .softcap(3)
      .qk_norm(HeadNormOptions(HeadNormKind::kRms));
}

LatentAttentionOptions latent() {
  return LatentAttentionOptions(6, 5, 16, 2)
      .query_rank(4)
      .kv_rank(4)
      .nope_dim(3)
      .rope_dim(2)
      .value_dim(3);
}

} // namespace

TEST_CASE("A module that cannot be made throws") {
  std::function<void()> make;
  SECTION("SelfAttentionV1") {
    make = [] { SelfAttentionV1(3, 2); };
  }
  SECTION("SelfAttentionV2") {
    make = [] { SelfAttentionV2(3, 2, true); };
  }
  SECTION("CausalAttention") {
    make = [] { CausalAttention(3, 2, 6, 0.5); };
  }
  SECTION("MultiHeadAttentionWrapper") {
    make = [] { MultiHeadAttentionWrapper(3, 2, 6, 0.5, 2); };
  }
  SECTION("MultiHeadAttention") {
    make = [] { MultiHeadAttention{everything()}; };
  }
  SECTION("CrossAttention") {
    make = [] { CrossAttention{across()}; };
  }
  SECTION("LatentAttention") {
    make = [] { LatentAttention{latent()}; };
  }
  SECTION("LongformerAttention") {
    make = [] { LongformerAttention(6, 6, 2); };
  }
  SECTION("RelativeAttention") {
    make = [] { RelativeAttention(6, 6, 2); };
  }
  SECTION("a clone") {
    make = [module = MultiHeadAttention(everything())] { module->clone(); };
  }
  SECTION("LibTorch's, as ours") {
    make = [source = torch::nn::MultiheadAttention(8, 2)] {
      from_multihead_attention(*source, 6, /*causal=*/true);
    };
  }
  check_no_faults(fail_each_allocation([&] {
    Attempt attempt;
    attempt.run = make;
    attempt.changed = [] { return std::string(); };
    return attempt;
  }));
}

TEST_CASE("A forward that fails can be repeated") {
  torch::manual_seed(1);
  const auto x = torch::randn({2, 7, 6});
  const auto kernel = GENERATE(Kernel::kReference, Kernel::kFused);
  const bool recorded = GENERATE(false, true);
  CAPTURE(kernel, recorded);
  const torch::AutoGradMode mode(recorded);
  SECTION("SelfAttentionV1") {
    SelfAttentionV1 module(SelfAttentionOptions(6, 4).kernel(kernel));
    check_computation(*module, [&] { return Tensors{module(x)}; });
  }
  SECTION("SelfAttentionV2") {
    SelfAttentionV2 module(SelfAttentionOptions(6, 4).kernel(kernel));
    check_computation(*module, [&] { return Tensors{module(x)}; });
  }
  SECTION("CausalAttention") {
    CausalAttention module(CausalAttentionOptions(6, 4, 16).kernel(kernel));
    check_computation(*module, [&] { return Tensors{module(x)}; });
  }
  SECTION("MultiHeadAttentionWrapper") {
    MultiHeadAttentionWrapper module(
        MultiHeadAttentionWrapperOptions(6, 4, 16, 2).kernel(kernel));
    check_computation(*module, [&] { return Tensors{module(x)}; });
  }
  SECTION("MultiHeadAttention, small") {
    MultiHeadAttention module(
        MultiHeadAttentionOptions(6, 8, 16, 4).kernel(kernel));
    check_computation(*module, [&] { return Tensors{module(x)}; });
  }
  SECTION("MultiHeadAttention with everything") {
    MultiHeadAttention module(everything().kernel(kernel));
    check_computation(*module, [&] { return Tensors{module(x)}; });
  }
  SECTION("CrossAttention") {
    CrossAttention module(across().kernel(kernel));
    const auto context = torch::randn({2, 9, 5});
    const auto padding = torch::rand({2, 9}) < 0.3;
    check_computation(*module, [&] {
      const auto weights = module->forward_with_weights(x, context);
      return Tensors{
          std::get<0>(weights),
          std::get<1>(weights),
          module(x, context, ForwardOptions().key_padding_mask(padding))};
    });
  }
  SECTION("LatentAttention") {
    LatentAttention module(latent().kernel(kernel));
    const auto padding = torch::rand({2, 7}) < 0.3;
    check_computation(*module, [&] {
      const auto weights = module->forward_with_weights(x);
      return Tensors{
          std::get<0>(weights),
          std::get<1>(weights),
          module(x, ForwardOptions().key_padding_mask(padding))};
    });
  }
  SECTION("packed sequences") {
    MultiHeadAttention module(everything().kernel(kernel));
    const auto packed = x.flatten(0, 1);
    const auto options = ForwardOptions()
                             .cu_seqlens(torch::tensor({0, 5, 6, 14}))
                             .key_lengths(torch::tensor({3, 1, 8}))
                             .bias(torch::randn({3, 1, 8, 8}));
    check_computation(
        *module, [&] { return Tensors{module(packed, options)}; });
  }
  SECTION("MultiHeadAttention in bfloat16 with weights") {
    MultiHeadAttention module(everything().kernel(kernel));
    module->to(torch::kBFloat16);
    const auto input = x.to(torch::kBFloat16);
    check_computation(*module, [&] {
      const auto [context, weights] = module->forward_with_weights(input);
      return Tensors{context, weights, module(input)};
    });
  }
}

TEST_CASE("A forward with global tokens that fails can be repeated") {
  torch::manual_seed(1);
  const auto x = torch::randn({2, 7, 6});
  const auto kernel = GENERATE(Kernel::kReference, Kernel::kFused);
  const bool recorded = GENERATE(false, true);
  CAPTURE(kernel, recorded);
  const torch::AutoGradMode mode(recorded);
  LongformerAttention module(
      LongformerAttentionOptions(6, 4, 2).attention_window(4).kernel(kernel));
  const auto call = ForwardOptions()
                        .global_tokens(torch::arange(7).eq(3).expand({2, 7}))
                        .key_lengths(torch::tensor({7, 5}));
  check_computation(*module, [&] {
    const auto weights = module->forward_with_weights(x, call);
    return Tensors{std::get<0>(weights), std::get<1>(weights), module(x, call)};
  });
}

TEST_CASE("LibTorch itself ends the process when it frees a graph") {
  // Its ~TensorImpl, which may not throw, allocates. Hence graphs are tested
  // with one failure each.
  const auto x = torch::randn({2, 3}).requires_grad_();
  const auto result = fail_each_allocation([&] {
    Attempt attempt;
    attempt.run = [&] { x.sin().cos().exp(); };
    attempt.changed = [] { return std::string(); };
    return attempt;
  });
  REQUIRE_FALSE(result.faults.empty());
  CHECK_THAT(result.faults[0], ContainsText("ended the process"));
  CHECK_THAT(result.faults[0], ContainsText("torch::autograd::"));
}

TEST_CASE("A rotary table that cannot grow stays as it is") {
  const torch::NoGradGuard no_grad;
  torch::manual_seed(2);
  const auto x = torch::randn({2, 16, 6});
  check_no_faults(fail_each_allocation([&] {
    torch::manual_seed(3);
    const auto module = std::make_shared<MultiHeadAttention>(everything());
    const auto first = (*module)(x.slice(1, 0, 2));
    const auto found = std::make_shared<torch::Tensor>();
    Attempt attempt;
    attempt.run = [=] { *found = (*module)(x); };
    attempt.changed = [=] {
      return difference({first}, {(*module)(x.slice(1, 0, 2))});
    };
    attempt.wrong = [=] { return difference({*found}, {(*module)(x)}); };
    return attempt;
  }));
}

TEST_CASE("A backward that fails can be repeated") {
  torch::manual_seed(4);
  const bool create_graph = GENERATE(false, true);
  const auto kernel = GENERATE(Kernel::kReference, Kernel::kFused);
  CAPTURE(create_graph, kernel);
  const auto gradients = [&](const torch::Tensor& output, const Tensors& of) {
    return torch::autograd::grad(
        {output.pow(2).sum()},
        of,
        {},
        /*retain_graph=*/true,
        create_graph);
  };
  SECTION("of attention") {
    const auto make = [] {
      return torch::randn({2, 4, 5, 3}, torch::kDouble).requires_grad_();
    };
    const Tensors inputs = {make(), make(), make()};
    const auto output = F::scaled_dot_product_attention(
        inputs[0],
        inputs[1],
        inputs[2],
        F::ScaledDotProductAttentionFuncOptions().causal(true).kernel(kernel));
    check_computation([&] { return gradients(output, inputs); });
  }
  SECTION("of a small module") {
    MultiHeadAttention module(
        MultiHeadAttentionOptions(6, 8, 16, 4).kernel(kernel));
    const auto output = module(torch::randn({2, 7, 6}));
    check_computation(
        *module, [&] { return gradients(output, module->parameters()); });
  }
  SECTION("of everything") {
    MultiHeadAttention module(everything().kernel(kernel));
    const auto output = module(torch::randn({2, 7, 6}));
    check_computation(
        *module, [&] { return gradients(output, module->parameters()); });
  }
  SECTION("of CrossAttention") {
    CrossAttention module(across().kernel(kernel));
    const auto output =
        module(torch::randn({2, 7, 6}), torch::randn({2, 9, 5}));
    check_computation(
        *module, [&] { return gradients(output, module->parameters()); });
  }
  SECTION("of LatentAttention") {
    LatentAttention module(latent().kernel(kernel));
    const auto output = module(torch::randn({2, 7, 6}));
    check_computation(
        *module, [&] { return gradients(output, module->parameters()); });
  }
  SECTION("of packed sequences") {
    MultiHeadAttention module(everything().kernel(kernel));
    const auto output = module(
        torch::randn({14, 6}),
        ForwardOptions().cu_seqlens(torch::tensor({0, 5, 6, 14})));
    // One sequence after the other, where gradients have gradients.
    Failures failures;
    failures.every = create_graph ? 7 : 1;
    check_computation(
        *module,
        [&] { return gradients(output, module->parameters()); },
        failures);
  }
}

TEST_CASE("Attention by two threads fails as a whole") {
  // The kernels' threads ask for no memory of their own.
  torch::manual_seed(6);
  const auto dtype = GENERATE(torch::kFloat, torch::kBFloat16);
  const bool recorded = GENERATE(false, true);
  CAPTURE(dtype, recorded);
  const torch::AutoGradMode mode(recorded);
  Tensors inputs;
  for (int i = 0; i < 3; ++i) {
    inputs.push_back(
        torch::randn({2, 4, 150, 16}).to(dtype).requires_grad_(recorded));
  }
  auto options = F::ScaledDotProductAttentionFuncOptions().causal(true).kernel(
      Kernel::kFused);
  const auto attend = [&] {
    return F::scaled_dot_product_attention(
        inputs[0], inputs[1], inputs[2], options);
  };
  Failures failures;
  failures.threads = 2;
  SECTION("of attention") {
    if (recorded) {
      const auto output = attend();
      check_computation(
          [&] {
            return torch::autograd::grad(
                {output}, inputs, {torch::ones_like(output)}, true);
          },
          failures);
    } else {
      check_computation([&] { return Tensors{attend()}; }, failures);
    }
  }
  SECTION("of packed sequences") {
    for (auto& x : inputs) {
      x = x.detach()
              .transpose(1, 2)
              .flatten(0, 1)
              .transpose(0, 1)
              .requires_grad_(recorded);
    }
    options.cu_seqlens(torch::tensor({0, 20, 150, 299, 300}));
    check_computation([&] { return Tensors{attend()}; }, failures);
  }
}

TEST_CASE("A module that cannot be replaced stays where it is") {
  torch::manual_seed(5);
  const torch::NoGradGuard no_grad;
  const auto x = torch::randn({2, 7, 6});
  const MultiHeadAttentionOptions options(6, 6, 16, 2);
  MultiHeadAttention old(options);
  MultiHeadAttention replacement(options);
  const std::string child = "1";
  const auto check = [&](const auto& make) {
    check_no_faults(fail_each_allocation([&] {
      const std::shared_ptr<torch::nn::Module> root = make();
      Attempt attempt;
      attempt.run = [&, root] { replace_module(*root, child, replacement); };
      const auto is = [root, x](MultiHeadAttention module) {
        if (root->children()[1] != module.ptr()) {
          return "another child in the tree";
        }
        auto* sequential = root->as<torch::nn::SequentialImpl>();
        return sequential == nullptr ||
                sequential->forward(x).equal(module->forward(x))
            ? ""
            : "another child in forward";
      };
      attempt.changed = [=] { return is(old); };
      attempt.wrong = [=] { return is(replacement); };
      return attempt;
    }));
  };
  SECTION("in Sequential") {
    check([&] {
      torch::nn::Sequential parent;
      parent->push_back(torch::nn::Identity());
      parent->push_back(old);
      return parent.ptr();
    });
  }
  SECTION("in ModuleList") {
    check([&] {
      torch::nn::ModuleList parent;
      parent->push_back(torch::nn::Identity());
      parent->push_back(old);
      return parent.ptr();
    });
  }
  SECTION("in ModuleDict") {
    check([&] {
      return torch::nn::ModuleDict(
                 std::vector<std::pair<
                     std::string,
                     std::shared_ptr<torch::nn::Module>>>{
                     {"0", torch::nn::Identity().ptr()}, {"1", old.ptr()}})
          .ptr();
    });
  }
}

} // namespace modules_test
