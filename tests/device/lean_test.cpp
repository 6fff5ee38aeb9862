// On a device, LibTorch's fused kernels compute what they can: no tensor with
// an element for each query and key, no copy of keys for grouped heads, and no
// wait for the device.

#include <device/log.h>
#include <device/memory.h>
#include <device/sdpa.h>

#include <support/close.h>
#include <support/test.h>

#include <operators/library.h>

#include <ATen/autocast_mode.h>

#include <algorithm>
#include <string>
#include <vector>

namespace device_lean_test {

using namespace torch_attention;
using namespace torch_attention::testing;
namespace F = torch_attention::functional;
using Options = F::ScaledDotProductAttentionFuncOptions;

namespace {

constexpr auto kFlash = at::SDPBackend::flash_attention;
constexpr auto kEfficient = at::SDPBackend::efficient_attention;

struct Shape {
  int64_t B;
  int64_t H;
  int64_t G;
  int64_t T;
  int64_t S;
  int64_t D;
};

/// Queries after a cache. (T, S) has as many elements as the keys.
const Shape kCached{2, 16, 2, 64, 1024, 16};
const Shape kSingle{2, 16, 2, 1, 1024, 16};
const Shape kPrompt{1, 4, 2, 512, 512, 8};

struct Kind {
  std::string name;
  Options options;
};

/// Returns random query, key and value.
std::vector<torch::Tensor> inputs_of(const Shape& shape) {
  return {
      torch::randn({shape.B, shape.H, shape.T, shape.D}),
      torch::randn({shape.B, shape.G, shape.S, shape.D}),
      torch::randn({shape.B, shape.G, shape.S, shape.D})};
}

torch::Tensor left_padding(const Shape& shape) {
  auto mask = torch::zeros({shape.B, 1, 1, shape.S}, torch::kBool);
  for (int64_t b = 0; b < shape.B; ++b) {
    mask[b].slice(-1, 0, 3 + 5 * b).fill_(true);
  }
  return mask;
}

std::vector<Kind> by_position(const Shape& shape) {
  std::vector<Kind> kinds{
      {"all keys", Options()},
      {"causal", Options().causal(true)},
      {"causal, scaled", Options().causal(true).scale(-0.3)},
      {"window", Options().causal(true).window(100)},
      {"window beyond all keys", Options().causal(true).window(1 << 20)},
      {"chunks", Options().causal(true).chunk(128)},
      {"sinks", Options().causal(true).sinks(torch::randn({shape.H}))},
      {"sinks and a window",
       Options().causal(true).window(9).sinks(torch::randn({shape.H}))}};
  return kinds;
}

/// Returns what flash computes.
std::vector<Kind> by_flash(const Shape& shape) {
  auto kinds = by_position(shape);
  kinds.push_back(
      {"window to both sides", Options().window(9).window_after(4)});
  kinds.push_back({"window to the right", Options().window_after(4)});
  kinds.push_back({"chunks without causal", Options().chunk(128)});
  return kinds;
}

/// Returns what the memory-efficient kernel computes.
std::vector<Kind> by_efficient(const Shape& shape) {
  auto kinds = by_position(shape);
  const auto slopes = F::alibi_slopes(shape.H);
  const auto lengths = torch::arange(shape.B) * 7 + shape.S - 20;
  const auto padding = left_padding(shape);
  kinds.push_back({"slopes", Options().causal(true).alibi_slopes(slopes)});
  kinds.push_back(
      {"slopes and a window",
       Options().causal(true).window(100).alibi_slopes(slopes)});
  kinds.push_back({"lengths", Options().key_lengths(lengths)});
  kinds.push_back(
      {"causal, lengths", Options().causal(true).key_lengths(lengths)});
  kinds.push_back({"left padding", Options().causal(true).mask(padding)});
  kinds.push_back(
      {"left padding and slopes",
       Options().causal(true).mask(padding).alibi_slopes(slopes)});
  kinds.push_back(
      {"all padding", Options().mask(torch::ones({1, 1, 1, 1}, torch::kBool))});
  kinds.push_back(
      {"bias for each key",
       Options().causal(true).bias(torch::randn({1, shape.H, 1, shape.S}))});
  return kinds;
}

Options on_device(Options options) {
  const auto move = [](const torch::Tensor& x) {
    return x.defined() ? x.to(device()) : x;
  };
  return options.mask(move(options.mask()))
      .bias(move(options.bias()))
      .sinks(move(options.sinks()))
      .alibi_slopes(move(options.alibi_slopes()))
      .key_lengths(move(options.key_lengths()));
}

struct Computed {
  std::vector<torch::Tensor> results;
  int64_t largest = 0;
  /// The operators, to be shown where a test fails
  std::string operations;
  std::vector<std::string> waits;
};

std::string describe(const std::vector<Operation>& operations) {
  std::string text;
  for (const auto& [name, inputs, outputs] : operations) {
    text +=
        c10::str(name, " -> ", outputs.empty() ? Sizes() : outputs[0], "\n");
  }
  return text;
}

/// Computes on the device; with gradients of query, key and value if asked.
Computed compute(
    const std::vector<torch::Tensor>& inputs,
    torch::Dtype dtype,
    const Options& options,
    bool with_gradients) {
  std::vector<torch::Tensor> leaves;
  for (const auto& x : inputs) {
    leaves.push_back(x.to(dtype).to(device()).requires_grad_(with_gradients));
  }
  auto moved = on_device(options).enable_gqa(true);
  if (moved.bias().defined()) {
    moved.bias(moved.bias().to(dtype));
  }
  const auto gradient = torch::ones_like(leaves[0]);
  Computed computed;
  {
    const DeviceLog log;
    const auto output =
        F::scaled_dot_product_attention(leaves[0], leaves[1], leaves[2], moved);
    if (with_gradients) {
      computed.results = torch::autograd::grad({output}, leaves, {gradient});
    }
    computed.results.push_back(output.detach());
    computed.largest = log.largest();
    computed.operations = describe(log.operations());
    computed.waits = log.waits();
  }
  for (auto& x : computed.results) {
    x = x.cpu().to(torch::kFloat);
  }
  return computed;
}

std::vector<torch::Tensor> expected_of(
    const std::vector<torch::Tensor>& inputs,
    Options options,
    bool with_gradients) {
  std::vector<torch::Tensor> leaves;
  for (const auto& x : inputs) {
    leaves.push_back(x.detach().clone().requires_grad_(with_gradients));
  }
  const auto output = F::scaled_dot_product_attention(
      leaves[0], leaves[1], leaves[2], options.enable_gqa(true));
  std::vector<torch::Tensor> results;
  if (with_gradients) {
    results =
        torch::autograd::grad({output}, leaves, {torch::ones_like(leaves[0])});
  }
  results.push_back(output.detach());
  return results;
}

void check_kind(
    const Shape& shape,
    const Kind& kind,
    torch::Dtype dtype,
    bool with_gradients) {
  CAPTURE(kind.name, shape.T, shape.S, dtype, with_gradients);
  const auto inputs = inputs_of(shape);
  const auto computed = compute(inputs, dtype, kind.options, with_gradients);
  CAPTURE(computed.operations);
  CHECK(computed.waits.empty());
  CHECK(computed.largest < shape.T * shape.S);
  const auto tolerance = dtype == torch::kFloat ? 2e-5 : 4e-2;
  const auto expected = expected_of(inputs, kind.options, with_gradients);
  for (size_t i = 0; i < expected.size(); ++i) {
    CAPTURE(i);
    CHECK_THAT(
        computed.results[i],
        IsCloseTo(expected[i], Tolerance(tolerance, tolerance)));
  }
}

/// Moves the module's layers; LibTorch's `to` does not support the device.
void move_layers(torch::nn::Module& module, const torch::TensorOptions& to) {
  for (const auto& child : module.modules(/*include_self=*/false)) {
    if (auto* linear = child->as<torch::nn::LinearImpl>()) {
      linear->weight = linear->weight.to(to);
      linear->bias =
          linear->bias.defined() ? linear->bias.to(to) : linear->bias;
    }
  }
}

/// Chooses LibTorch's kernel of the device while it lives.
struct Chosen {
  explicit Chosen(at::SDPBackend backend) : before(choose(backend)) {}
  ~Chosen() {
    choose(before);
  }
  Chosen(const Chosen&) = delete;
  Chosen& operator=(const Chosen&) = delete;
  Chosen(Chosen&&) = delete;
  Chosen& operator=(Chosen&&) = delete;

  at::SDPBackend before;
};

} // namespace

TEST_CASE("Flash gets what it can compute, without masks or copies of keys") {
  torch::manual_seed(1);
  const Chosen chosen(kFlash);
  for (const auto& shape : {kCached, kPrompt}) {
    for (const auto& kind : by_flash(shape)) {
      check_kind(shape, kind, torch::kBFloat16, /*with_gradients=*/false);
    }
  }
  for (const auto& kind : by_flash(kPrompt)) {
    check_kind(kPrompt, kind, torch::kBFloat16, /*with_gradients=*/true);
  }
}

TEST_CASE("The efficient kernel gets what it can compute, without masks") {
  torch::manual_seed(2);
  const Chosen chosen(kEfficient);
  for (const auto& shape : {kCached, kPrompt}) {
    for (const auto& kind : by_efficient(shape)) {
      check_kind(shape, kind, torch::kFloat, /*with_gradients=*/false);
    }
  }
  for (const auto& kind : by_efficient(kPrompt)) {
    // Its backward pass wants as many queries as keys, not blocks of queries.
    if (kind.name != "slopes and a window") {
      check_kind(kPrompt, kind, torch::kFloat, /*with_gradients=*/true);
    }
  }
}

TEST_CASE("A single cached query copies no keys") {
  torch::manual_seed(3);
  const auto keys = kSingle.B * kSingle.G * kSingle.S * kSingle.D;
  // LibTorch's mathematical definition scales, and so copies, the keys.
  for (const auto backend : {kFlash, kEfficient}) {
    const Chosen chosen(backend);
    const auto dtype = backend == kFlash ? torch::kBFloat16 : torch::kFloat;
    for (const auto& kind : by_efficient(kSingle)) {
      CAPTURE(kind.name, dtype);
      const auto inputs = inputs_of(kSingle);
      const auto computed = compute(inputs, dtype, kind.options, false);
      CHECK(computed.waits.empty());
      CHECK(computed.largest < keys);
      const auto tolerance = dtype == torch::kFloat ? 2e-5 : 4e-2;
      CHECK_THAT(
          computed.results[0],
          IsCloseTo(
              expected_of(inputs, kind.options, false)[0],
              Tolerance(tolerance, tolerance)));
    }
  }
}

TEST_CASE("Packed sequences are one call of LibTorch's kernels") {
  torch::manual_seed(4);
  const auto starts = torch::tensor({0, 100, 230, 231, 512});
  for (const auto backend : {kFlash, kEfficient}) {
    const Chosen chosen(backend);
    const bool flash = backend == kFlash;
    for (const bool with_gradients : {false, true}) {
      for (const auto& kind :
           {Kind{"causal", Options().causal(true).cu_seqlens(starts)},
            Kind{"all keys", Options().cu_seqlens(starts)},
            Kind{
                "window and sinks",
                Options().causal(true).window(20).cu_seqlens(starts).sinks(
                    torch::randn({4}))}}) {
        check_kind(
            kPrompt,
            kind,
            flash ? torch::kBFloat16 : torch::kFloat,
            with_gradients);
      }
    }
    const DeviceLog log;
    const auto x = torch::randn({1, 4, 512, 8})
                       .to(flash ? torch::kBFloat16 : torch::kFloat)
                       .to(device());
    F::scaled_dot_product_attention(
        x, x, x, Options().causal(true).cu_seqlens(starts));
    CHECK(
        log.count(
            flash ? "aten::_flash_attention_forward"
                  : "aten::_efficient_attention_forward") == 1);
  }
}

TEST_CASE("Calls at which LibTorch's kernels err give the definition") {
  torch::manual_seed(11);
  const auto sinks = torch::randn({4});
  const auto padding = torch::tensor({true, false, false, true, false});
  const auto starts = [](std::vector<int64_t> x) { return torch::tensor(x); };
  struct Case {
    std::string name;
    Shape shape;
    Options options;
  };
  const std::vector<Case> cases{
      {"more queries than twice the keys", {2, 4, 2, 12, 5, 8}, Options()},
      {"and padding", {2, 4, 2, 12, 5, 8}, Options().mask(padding)},
      {"and lengths",
       {2, 4, 2, 12, 5, 8},
       Options().key_lengths(starts({0, 3}))},
      {"causal before the first key",
       {2, 4, 2, 9, 5, 8},
       Options().causal(true)},
      {"a window before the first key",
       {2, 4, 2, 9, 5, 8},
       Options().window(3).window_after(5)},
      {"a window after a cache",
       {2, 4, 2, 4, 7, 8},
       Options().causal(true).window(3)},
      {"slopes and a window in blocks",
       {1, 4, 2, 300, 300, 8},
       Options().causal(true).window(40).alibi_slopes(F::alibi_slopes(4))},
      {"one head of keys",
       {2, 4, 1, 33, 40, 8},
       Options().mask(torch::rand({33, 40}).gt(0.5))},
      {"packed, without keys",
       {1, 4, 2, 9, 6, 8},
       Options()
           .cu_seqlens(starts({0, 4, 6, 9}))
           .cu_seqlens_k(starts({0, 3, 3, 6}))
           .sinks(sinks)},
      {"packed, causal, with fewer keys",
       {1, 4, 2, 9, 6, 8},
       Options()
           .causal(true)
           .cu_seqlens(starts({0, 4, 6, 9}))
           .cu_seqlens_k(starts({0, 3, 3, 6}))
           .sinks(sinks)},
      {"packed, one query in all",
       {1, 4, 2, 1, 7, 8},
       Options().cu_seqlens(starts({0, 1})).cu_seqlens_k(starts({0, 7}))},
      {"packed, one query or none",
       {1, 4, 2, 2, 7, 8},
       Options()
           .cu_seqlens(starts({0, 1, 1, 2}))
           .cu_seqlens_k(starts({0, 3, 5, 7}))},
      {"a bias with keys outside",
       {2, 4, 2, 1, 16, 8},
       Options().bias(torch::randn({1, 16, 4}).permute({2, 0, 1}))}};
  for (const auto backend : {kFlash, kEfficient}) {
    const Chosen chosen(backend);
    const auto dtype = backend == kFlash ? torch::kBFloat16 : torch::kFloat;
    const auto tolerance = backend == kFlash ? 6e-2 : 5e-5;
    for (const auto& each : cases) {
      for (const bool with_gradients : {false, true}) {
        CAPTURE(each.name, dtype, with_gradients);
        const auto inputs = inputs_of(each.shape);
        const auto computed =
            compute(inputs, dtype, each.options, with_gradients);
        const auto expected = expected_of(inputs, each.options, with_gradients);
        for (size_t i = 0; i < expected.size(); ++i) {
          CAPTURE(i);
          CHECK_THAT(
              computed.results[i],
              IsCloseTo(expected[i], Tolerance(tolerance, tolerance)));
        }
      }
    }
  }
}

TEST_CASE("Scores that LibTorch has no kernel for are formed in blocks") {
  torch::manual_seed(10);
  const Shape shape{1, 2, 1, 1000, 1000, 8};
  const auto inputs = inputs_of(shape);
  const auto rows = torch::randn({1, 2, shape.T, 1});
  for (const auto& kind : std::vector<Kind>{
           {"causal", Options().causal(true).softcap(2)},
           {"all keys", Options().softcap(2)},
           {"bias",
            Options().causal(true).softcap(2).bias(
                torch::randn({shape.T, shape.S}))},
           {"bias for each query", Options().softcap(2).bias(rows)},
           {"window and sinks",
            Options().causal(true).window(300).softcap(2).sinks(
                torch::randn({2}))}}) {
    CAPTURE(kind.name);
    const auto computed =
        compute(inputs, torch::kFloat, kind.options, /*with_gradients=*/false);
    CHECK(computed.waits.empty());
    CHECK(computed.largest < shape.T * shape.S);
    CHECK_THAT(
        computed.results[0],
        IsCloseTo(
            expected_of(inputs, kind.options, false)[0],
            Tolerance(2e-5, 2e-5)));
  }
}

TEST_CASE("Gradients of LibTorch's kernels are differentiated again") {
  torch::manual_seed(7);
  const Chosen chosen(kEfficient);
  const auto inputs = inputs_of({2, 4, 2, 9, 9, 8});
  const auto sinks = torch::randn({4});
  const auto second = [&](torch::Device to, double dropout) {
    std::vector<torch::Tensor> leaves;
    for (const auto& x : inputs) {
      leaves.push_back(x.to(to).requires_grad_());
    }
    leaves.push_back(sinks.to(to).requires_grad_());
    const auto output = F::scaled_dot_product_attention(
        leaves[0],
        leaves[1],
        leaves[2],
        Options()
            .causal(true)
            .window(4)
            .enable_gqa(true)
            .sinks(leaves[3])
            .dropout(dropout));
    const auto first = torch::autograd::grad(
        {output.square().sum()},
        leaves,
        {},
        /*retain_graph=*/true,
        /*create_graph=*/true);
    auto sum = torch::zeros({}, output.options());
    for (const auto& x : first) {
      sum = sum + x.square().sum();
    }
    return torch::autograd::grad({sum}, leaves);
  };
  const auto expected = second(torch::kCPU, 0);
  const auto found = second(device(), 0);
  for (size_t i = 0; i < expected.size(); ++i) {
    CAPTURE(i);
    CHECK_THAT(found[i].cpu(), IsCloseTo(expected[i], Tolerance(1e-4, 1e-4)));
  }
  CHECK_THROWS_WITH(second(device(), 0.5), ContainsText("expected no dropout"));
}

TEST_CASE("An output on a device that was changed has no gradients") {
  const Chosen chosen(kEfficient);
  auto inputs = inputs_of({2, 4, 4, 9, 9, 8});
  for (auto& x : inputs) {
    x = x.to(device()).requires_grad_();
  }
  auto output = F::scaled_dot_product_attention(
      inputs[0], inputs[1], inputs[2], Options().causal(true).window(3));
  output += 1;
  CHECK_THROWS_WITH(output.sum().backward(), ContainsText("changed in place"));
}

TEST_CASE("Dropout of LibTorch's kernels keeps its mask for gradients") {
  torch::manual_seed(8);
  for (const auto backend : {kFlash, kEfficient}) {
    const Chosen chosen(backend);
    const auto dtype = backend == kFlash ? torch::kBFloat16 : torch::kFloat;
    const auto options = torch::device(device()).dtype(dtype);
    // With equal scores and the identity as values, outputs are weights.
    const auto zeros = torch::zeros({1, 2, 32, 32}, options);
    const auto value = torch::eye(32)
                           .expand({1, 2, 32, 32})
                           .to(options)
                           .contiguous()
                           .requires_grad_();
    const auto output = F::scaled_dot_product_attention(
        zeros,
        zeros.clone(),
        value,
        Options().causal(true).window(20).dropout(0.5));
    const auto weights = output.detach().cpu().to(torch::kFloat);
    const auto kept = weights.gt(0).to(torch::kFloat).mean().item<double>();
    // Half of the weights that the window shows.
    const auto shown = torch::ones({32, 32}).tril().triu(-19);
    CHECK(kept > 0.4 * shown.mean().item<double>());
    CHECK(kept < 0.6 * shown.mean().item<double>());
    output.sum().backward();
    CHECK_THAT(
        value.grad().cpu().to(torch::kFloat),
        IsCloseTo(
            weights.sum(2).unsqueeze(-1).expand({1, 2, 32, 32}),
            Tolerance(2e-2, 2e-2)));
  }
}

TEST_CASE("Autocast on a device keeps its kernels") {
  torch::manual_seed(9);
  const Chosen chosen(kFlash);
  const auto inputs = inputs_of(kPrompt);
  const auto options = Options().causal(true).window(100).enable_gqa(true);
  std::vector<torch::Tensor> moved;
  for (const auto& x : inputs) {
    moved.push_back(x.to(device()));
  }
  constexpr auto kDevice = c10::DeviceType::PrivateUse1;
  at::autocast::set_autocast_enabled(kDevice, true);
  at::autocast::set_autocast_dtype(kDevice, torch::kBFloat16);
  const DeviceLog log;
  const auto output =
      F::scaled_dot_product_attention(moved[0], moved[1], moved[2], options);
  at::autocast::set_autocast_enabled(kDevice, false);
  CHECK(log.count("aten::_flash_attention_forward") == 1);
  CHECK(log.largest() < kPrompt.T * kPrompt.S);
  CHECK(output.scalar_type() == torch::kBFloat16);
  CHECK_THAT(
      output.cpu().to(torch::kFloat),
      IsCloseTo(expected_of(inputs, options, false)[0], Tolerance(4e-2, 4e-2)));
}

TEST_CASE("The operator decode reads no lengths that lie on the device") {
  torch::manual_seed(5);
  REQUIRE(operators::attention_name());
  const auto decode = c10::Dispatcher::singleton().findSchemaOrThrow(
      "torch_attention::decode", "");
  const auto T = GENERATE(int64_t{1}, int64_t{3});
  const auto window =
      GENERATE(std::optional<int64_t>(), std::optional<int64_t>(7));
  for (const auto backend : {kFlash, kEfficient, at::SDPBackend::math}) {
    CAPTURE(T, window.has_value(), static_cast<int>(backend));
    const Chosen chosen(backend);
    const auto dtype = backend == kFlash ? torch::kHalf : torch::kFloat;
    const auto query = torch::randn({3, 8, T, 16}).to(dtype);
    const auto key = torch::randn({3, 2, T, 16}).to(dtype);
    const auto cache = torch::randn({3, 2, 256, 16}).to(dtype);
    const auto lengths = torch::tensor({0, 200, 17});
    const auto run = [&](torch::Device to) {
      auto keys = cache.to(to).clone();
      auto values = cache.neg().to(to).clone();
      torch::jit::Stack stack;
      for (const auto& argument : decode.schema().arguments()) {
        stack.push_back(
            argument.default_value() ? *argument.default_value()
                                     : c10::IValue());
      }
      stack[0] = query.to(to);
      stack[1] = key.to(to);
      stack[2] = key.neg().to(to);
      stack[3] = keys;
      stack[4] = values;
      stack[5] = lengths.to(to);
      for (size_t i = 0; i < stack.size(); ++i) {
        if (decode.schema().arguments()[i].name() == "window" && window) {
          stack[i] = *window;
        }
      }
      const DeviceLog log;
      decode.callBoxed(&stack);
      CHECK(log.waits().empty());
      CHECK(log.copies_to_device() == 0);
      if (to != torch::kCPU && backend != at::SDPBackend::math) {
        // No keys are copied: (3, 2, 256, 16) elements.
        CHECK(log.largest() < cache.numel());
      }
      return std::vector<torch::Tensor>{
          stack[0].toTensor().cpu(), keys.cpu(), values.cpu()};
    };
    const auto expected = run(torch::kCPU);
    const auto found = run(device());
    const auto tolerance = dtype == torch::kFloat ? 1e-5 : 4e-3;
    for (size_t i = 0; i < expected.size(); ++i) {
      CAPTURE(i);
      CHECK_THAT(
          found[i], IsCloseTo(expected[i], Tolerance(tolerance, tolerance)));
    }
  }
}

TEST_CASE("A module decodes without waiting for the device") {
  torch::manual_seed(6);
  const bool ragged = GENERATE(false, true);
  for (const auto backend : {kFlash, kEfficient}) {
    CAPTURE(ragged, static_cast<int>(backend));
    const Chosen chosen(backend);
    MultiHeadAttention attention(MultiHeadAttentionOptions(64, 64, 512, 8)
                                     .num_kv_heads(2)
                                     .rotary(RotaryOptions()));
    attention->eval();
    const torch::NoGradGuard no_grad;
    const auto options = torch::device(device()).dtype(
        backend == kFlash ? torch::kBFloat16 : torch::kFloat);
    move_layers(*attention, options);
    auto cache = attention->make_cache(2);
    cache.reserve(300);
    DecodeOptions prompt;
    if (ragged) {
      prompt.new_lengths(torch::tensor({256, 100}));
    }
    attention->decode(torch::randn({2, 256, 64}, options), cache, prompt);
    const auto token = torch::randn({2, 1, 64}, options);
    attention->decode(token, cache);
    const DeviceLog log;
    attention->decode(token, cache);
    CHECK(log.waits().empty());
    // The cache has 2 * 2 * 258 * 8 elements that are used.
    CHECK(log.largest() < int64_t{2} * 2 * 258 * 8);
    // Places of new rows, their positions and lengths.
    CHECK(log.copies_to_device() == (ragged ? 3 : 0));
  }
}

} // namespace device_lean_test
