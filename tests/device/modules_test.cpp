// Modules on the device: outputs, gradients and training steps.

#include <device/log.h>
#include <device/memory.h>

#include <support/close.h>
#include <support/test.h>

#include <functional>
#include <memory>

namespace device_modules_test {

using namespace torch_attention;
using namespace torch_attention::testing;

namespace {

constexpr int64_t kIn = 12;
constexpr int64_t kOut = 16;
constexpr int64_t kTokens = 7;
constexpr int64_t kContext = 9;
constexpr int64_t kHeads = 4;

using Call =
    std::function<torch::Tensor(torch::nn::Module&, const torch::Tensor&)>;

/// Returns what a module has after three steps of training on `x`: the last
/// output, its gradients and its parameters, on the CPU.
std::vector<torch::Tensor> train(
    torch::nn::Module& module,
    const torch::Tensor& x,
    const Call& call) {
  // The gradient of a key bias is zero but for rounding, which a small eps
  // would make a step of.
  torch::optim::AdamW optimizer(
      module.parameters(),
      torch::optim::AdamWOptions(1e-2).weight_decay(0.1).eps(1e-2));
  torch::Tensor output;
  const auto input = x.detach().requires_grad_();
  for (int i = 0; i < 3; ++i) {
    optimizer.zero_grad();
    output = call(module, input);
    output.pow(2).sum().backward();
    optimizer.step();
  }
  std::vector<torch::Tensor> results{output.detach(), input.grad()};
  for (const auto& parameter : module.parameters()) {
    results.push_back(parameter.grad());
    results.push_back(parameter.detach());
  }
  for (auto& result : results) {
    CHECK(result.device() == x.device());
    result = result.cpu();
  }
  return results;
}

/// Checks that `module` trains on the device as on the CPU.
void check_trains(
    const std::string& name,
    torch::nn::Module& module,
    const Call& call,
    torch::ScalarType dtype = torch::kFloat) {
  CAPTURE(name, dtype);
  module.to(dtype);
  const auto x = torch::randn({2, kTokens, kIn}).to(dtype);
  const auto moved = module.clone(device());
  const auto expected = train(module, x, call);
  const auto actual = train(*moved, x.to(device()), call);
  const auto bound = dtype == torch::kFloat ? 2e-4 : 1e-9;
  check_all_close(actual, expected, Tolerance(bound, bound));
}

template <typename Module>
Call forward_of() {
  return [](torch::nn::Module& module, const torch::Tensor& x) {
    return module.as<Module>()->forward(x);
  };
}

MultiHeadAttentionOptions multi_head() {
  return {kIn, kOut, kContext, kHeads};
}

/// Options of `MultiHeadAttention` under a name each.
std::vector<std::pair<std::string, MultiHeadAttentionOptions>>
every_multi_head() {
  return {
      {"causal", multi_head()},
      {"all keys", multi_head().causal(false)},
      {"grouped", multi_head().num_kv_heads(2).qkv_bias(true)},
      {"window", multi_head().window(3)},
      {"chunk", multi_head().chunk(3)},
      {"softcap", multi_head().softcap(5)},
      {"alibi", multi_head().alibi(true)},
      {"sinks", multi_head().sinks(true).num_kv_heads(2)},
      {"rotary", multi_head().rotary(RotaryOptions())},
      {"norm", multi_head().qk_norm(HeadNormOptions()).value_norm_eps(1e-3)},
      {"gate", multi_head().output_gate(OutputGateOptions())},
      {"norm of the context", multi_head().out_norm(HeadNormOptions())},
      {"scales", multi_head().query_scale(true).value_scale(0.5)},
      {"sizes", multi_head().head_dim(6).value_dim(10)},
      {"temperature", multi_head().temperature(TemperatureOptions(3))},
      {"clip", multi_head().clip_qkv(0.5)},
      {"all rules",
       multi_head()
           .num_kv_heads(2)
           .rotary(RotaryOptions())
           .window(4)
           .alibi(true)
           .sinks(true)
           .softcap(5)},
  };
}

} // namespace

TEST_CASE("Self-attention and causal attention train on the device") {
  torch::manual_seed(1);
  SelfAttentionV1 first(SelfAttentionOptions(kIn, kOut).scale(0.01));
  check_trains("V1", *first, forward_of<SelfAttentionV1Impl>());
  SelfAttentionV2 second(SelfAttentionOptions(kIn, kOut).qkv_bias(true));
  check_trains("V2", *second, forward_of<SelfAttentionV2Impl>());
  CausalAttention causal(CausalAttentionOptions(kIn, kOut, kContext));
  check_trains("causal", *causal, forward_of<CausalAttentionImpl>());
  MultiHeadAttentionWrapper wrapper(
      MultiHeadAttentionWrapperOptions(kIn, kOut, kContext, kHeads));
  check_trains(
      "wrapper", *wrapper, forward_of<MultiHeadAttentionWrapperImpl>());
}

TEST_CASE("Multi-head attention trains on the device") {
  torch::manual_seed(2);
  for (const auto& [name, options] : every_multi_head()) {
    for (const auto dtype : {torch::kFloat, torch::kDouble}) {
      MultiHeadAttention module(options);
      check_trains(name, *module, forward_of<MultiHeadAttentionImpl>(), dtype);
    }
  }
}

TEST_CASE("Attention with arguments of the call trains on the device") {
  torch::manual_seed(3);
  const auto with = [](const ForwardOptions& options) -> Call {
    return [options](torch::nn::Module& module, const torch::Tensor& x) {
      auto call = options;
      const auto move = [&](const torch::Tensor& tensor) {
        return tensor.defined() ? tensor.to(x.device()) : tensor;
      };
      call.mask(move(call.mask()))
          .bias(move(call.bias()))
          .key_padding_mask(move(call.key_padding_mask()))
          .key_lengths(move(call.key_lengths()))
          .positions(move(call.positions()))
          .visible_blocks(move(call.visible_blocks()));
      return module.as<MultiHeadAttentionImpl>()->forward(x, call);
    };
  };
  const auto check = [&](const std::string& name,
                         const ForwardOptions& options) {
    MultiHeadAttention module(multi_head().rotary(RotaryOptions()));
    check_trains(name, *module, with(options));
  };
  check("mask", ForwardOptions().mask(torch::rand({kTokens, kTokens}) < 0.3));
  check(
      "block mask",
      ForwardOptions().block_mask(BlockMask(
          MaskMod::documents(torch::randint(3, {2, kTokens})),
          BlockMaskOptions(kTokens).batch_size(2))));
  check("bias", ForwardOptions().bias(torch::randn({kTokens, kTokens})));
  check("lengths", ForwardOptions().key_lengths(torch::tensor({3, 7})));
  check(
      "padding",
      ForwardOptions().key_padding_mask(torch::rand({2, kTokens}) < 0.3));
  check(
      "positions", ForwardOptions().positions(torch::randint(9, {2, kTokens})));
  check(
      "blocks",
      ForwardOptions().visible_blocks(
          torch::tensor({-1, 0, 0, 0, -1, 1, 1}).expand({2, kTokens})));
}

TEST_CASE("Packed sequences train on the device") {
  torch::manual_seed(4);
  MultiHeadAttention module(multi_head().num_kv_heads(2));
  const Call call = [](torch::nn::Module& attention, const torch::Tensor& x) {
    return attention.as<MultiHeadAttentionImpl>()->forward(
        x.flatten(0, 1).unsqueeze(0),
        ForwardOptions().cu_seqlens(
            torch::tensor({0, 3, 4, 9, 14}).to(x.device())));
  };
  check_trains("packed", *module, call);
}

TEST_CASE("Cross-attention and latent attention train on the device") {
  torch::manual_seed(5);
  CrossAttention cross(
      CrossAttentionOptions(kIn, kIn, kOut, kHeads).num_kv_heads(2));
  check_trains(
      "cross", *cross, [](torch::nn::Module& module, const torch::Tensor& x) {
        return module.as<CrossAttentionImpl>()->forward(
            x.slice(1, 0, 3), x.slice(1, 3));
      });
  LatentAttention latent(LatentAttentionOptions(kIn, kOut, kContext, kHeads)
                             .kv_rank(4)
                             .nope_dim(6)
                             .rope_dim(4)
                             .value_dim(5));
  check_trains("latent", *latent, forward_of<LatentAttentionImpl>());
}

TEST_CASE("Attention with relative positions trains on the device") {
  torch::manual_seed(7);
  const RelativeAttentionOptions options(kIn, kOut, kHeads);
  RelativeAttention sinusoids(options);
  check_trains("sinusoids", *sinusoids, forward_of<RelativeAttentionImpl>());
  RelativeAttention learned(RelativeAttentionOptions(options)
                                .kind(RelativeKind::kLearned)
                                .left(3)
                                .right(2));
  check_trains("learned", *learned, forward_of<RelativeAttentionImpl>());
  RelativeAttention disentangled(RelativeAttentionOptions(options)
                                     .kind(RelativeKind::kDisentangled)
                                     .max_distance(9)
                                     .buckets(4));
  check_trains(
      "disentangled", *disentangled, forward_of<RelativeAttentionImpl>());
}

TEST_CASE("Attention with global tokens trains on the device") {
  torch::manual_seed(8);
  LongformerAttention module(
      LongformerAttentionOptions(kIn, kOut, kHeads).attention_window(4));
  check_trains(
      "with global tokens",
      *module,
      [](torch::nn::Module& attention, const torch::Tensor& x) {
        const auto is_global = torch::arange(x.size(1), x.device())
                                   .eq(1)
                                   .expand({x.size(0), x.size(1)});
        return attention.as<LongformerAttentionImpl>()->forward(
            x, ForwardOptions().global_tokens(is_global));
      });
}

TEST_CASE("A relative bias trains on the device") {
  torch::manual_seed(6);
  RelativeBias bias{RelativeBiasOptions(kHeads)};
  check_trains(
      "bias", *bias, [](torch::nn::Module& module, const torch::Tensor& x) {
        const auto rows =
            module.as<RelativeBiasImpl>()->forward(x.size(1), x.size(1));
        return rows * x.sum();
      });
}

TEST_CASE("Half precision modules compute on the device") {
  torch::manual_seed(7);
  for (const auto& [name, options] : every_multi_head()) {
    for (const auto dtype : {torch::kHalf, torch::kBFloat16}) {
      CAPTURE(name, dtype);
      MultiHeadAttention module(options);
      module->to(dtype);
      const auto x = torch::randn({2, kTokens, kIn}).to(dtype);
      const auto moved = std::dynamic_pointer_cast<MultiHeadAttentionImpl>(
          module->clone(device()));
      const auto exact =
          std::dynamic_pointer_cast<MultiHeadAttentionImpl>(module->clone());
      exact->to(torch::kDouble);
      const auto output = moved->forward(x.to(device()));
      CHECK(output.scalar_type() == dtype);
      const auto bound = dtype == torch::kHalf ? 1e-2 : 8e-2;
      CHECK_THAT(
          output.detach().cpu().to(torch::kDouble),
          IsCloseTo(
              exact->forward(x.to(torch::kDouble)).detach(),
              Tolerance(bound, bound)));
      output.sum().backward();
    }
  }
}

TEST_CASE("Rotary tables are read on the device") {
  torch::manual_seed(9);
  const auto x = torch::randn({2, 3, kTokens, 8});
  const auto cos = torch::randn({kContext, 4});
  const auto sin = torch::randn({kContext, 4});
  const auto positions = torch::randint(kContext, {2, kTokens});
  const auto rotated = [](const torch::Tensor& each,
                          const RotaryTables& tables) {
    return functional::rotary_embedding(each, tables);
  };
  const auto on = [](const torch::Tensor& each) { return each.to(device()); };
  CHECK_THAT(
      rotated(on(x), RotaryTables(on(cos), on(sin)).positions(on(positions)))
          .cpu(),
      IsCloseTo(rotated(x, RotaryTables(cos, sin).positions(positions))));
  CHECK_THROWS_AS(rotated(on(x), RotaryTables(cos, sin)), c10::Error);
  CHECK_THROWS_AS(rotated(x, RotaryTables(on(cos), on(sin))), c10::Error);
}

TEST_CASE("Modules do not wait for the device") {
  torch::manual_seed(8);
  const torch::NoGradGuard no_grad;
  for (const auto& [name, options] : every_multi_head()) {
    CAPTURE(name);
    MultiHeadAttention module(options);
    module->to(device());
    const auto x = torch::randn({2, kTokens, kIn}).to(device());
    // Makes tables of angles.
    module->forward(x);
    const DeviceLog log;
    module->forward(x);
    CHECK(log.waits().empty());
  }
}

TEST_CASE("Modules refuse tensors of the CPU beside weights of the device") {
  MultiHeadAttention module(multi_head());
  module->to(device());
  const auto x = torch::randn({2, kTokens, kIn});
  const auto here = x.to(device());
  THROWS_WITH(module->forward(x), "where the weights are");
  const auto refuses = [&](const ForwardOptions& options) {
    CHECK_THROWS_AS(module->forward(here, options), c10::Error);
  };
  refuses(
      ForwardOptions().mask(torch::zeros({kTokens, kTokens}, torch::kBool)));
  refuses(ForwardOptions().bias(torch::zeros({kTokens, kTokens})));
  module->eval();
  const torch::NoGradGuard no_grad;
  auto cache = module->make_cache(2);
  CHECK(cache.options().device() == device());
  CHECK_THROWS_AS(module->decode(x, cache), c10::Error);
  cache.to(torch::kCPU);
  CHECK_THROWS_AS(module->decode(here, cache), c10::Error);
  CrossAttention cross(CrossAttentionOptions(kIn, kIn, kOut, kHeads));
  cross->to(device());
  CHECK_THROWS_AS(cross->forward(here, x), c10::Error);
}

} // namespace device_modules_test
