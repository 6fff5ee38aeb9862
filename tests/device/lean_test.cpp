// On a device, LibTorch's fused kernels compute what they can: no tensor with
// an element for each query and key, no copy of keys for grouped heads, and no
// wait for the device.

#include <device/computed.h>

#include <support/close.h>
#include <support/test.h>

#include <operators/library.h>

#include <ATen/Context.h>

#include <algorithm>
#include <limits>
#include <string>
#include <vector>

namespace device_lean_test {

using namespace torch_attention;
using namespace torch_attention::testing;
namespace F = torch_attention::functional;
using Options = AttentionOptions;

namespace {

/// Queries after a cache. (T, S) has as many elements as the keys.
const Shape kCached{2, 16, 2, 64, 1024, 16};
const Shape kSingle{2, 16, 2, 1, 1024, 16};
const Shape kPrompt{1, 4, 2, 512, 512, 8};

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
  check_all_close(computed.results, expected, Tolerance(tolerance, tolerance));
}

/// Calls the operator `decode` with tensors, a window if there is one, and the
/// defaults of its other options.
torch::Tensor decode(
    const std::vector<torch::Tensor>& tensors,
    const std::optional<int64_t>& window = std::nullopt) {
  REQUIRE(operators::attention_name());
  const auto op = c10::Dispatcher::singleton().findSchemaOrThrow(
      "torch_attention::decode", "");
  torch::jit::Stack stack;
  for (const auto& argument : op.schema().arguments()) {
    stack.push_back(
        argument.name() == "window"
            ? c10::IValue(window)
            : argument.default_value().value_or(c10::IValue()));
  }
  std::copy(tensors.begin(), tensors.end(), stack.begin());
  op.callBoxed(&stack);
  return stack[0].toTensor();
}

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

TEST_CASE("The operator decode reads no lengths that lie on the device") {
  torch::manual_seed(5);
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
      const std::vector<torch::Tensor> tensors{
          query.to(to),
          key.to(to),
          key.neg().to(to),
          keys,
          values,
          lengths.to(to)};
      const DeviceLog log;
      const auto output = decode(tensors, window);
      CHECK(log.waits().empty());
      CHECK(log.copies_to_device() == 0);
      if (to != torch::kCPU && backend != at::SDPBackend::math) {
        // No keys are copied: (3, 2, 256, 16) elements.
        CHECK(log.largest() < cache.numel());
      }
      return std::vector<torch::Tensor>{output.cpu(), keys.cpu(), values.cpu()};
    };
    const auto expected = run(torch::kCPU);
    const auto found = run(device());
    const auto tolerance = dtype == torch::kFloat ? 1e-5 : 4e-3;
    check_all_close(found, expected, Tolerance(tolerance, tolerance));
  }
}

TEST_CASE(
    "The device refuses lengths for which a cache has no rows",
    "[emulated]") {
  const bool deterministic = GENERATE(false, true);
  auto& context = at::globalContext();
  context.setDeterministicAlgorithms(deterministic, /*warn_only=*/false);
  const auto rows = torch::randn({2, 2, 1, 16}).to(device());
  const auto cache = torch::zeros({2, 2, 8, 16});
  const auto decode_at = [&](int64_t length) {
    const auto there = cache.to(device());
    decode(
        {rows,
         rows,
         rows,
         there,
         cache.to(device()),
         torch::tensor({int64_t{3}, length}).to(device())});
    return there.cpu();
  };
  CHECK_THAT(
      decode_at(7)[1].select(1, 7), IsEqualTo(rows.cpu()[1].select(1, 0)));
  for (const int64_t length : {-1, 8}) {
    CAPTURE(length, deterministic);
    CHECK_THROWS_WITH(
        decode_at(length),
        ContainsText(deterministic ? "leave room" : "out of bounds"));
  }
  context.setDeterministicAlgorithms(false, /*warn_only=*/false);
}

TEST_CASE("Rows that a cache does not use may hold NaN on the device") {
  torch::manual_seed(8);
  const auto capacity = GENERATE(int64_t{100}, int64_t{1100});
  const auto on_host = GENERATE(false, true);
  for (const auto backend : {kFlash, kEfficient}) {
    CAPTURE(capacity, on_host, static_cast<int>(backend));
    const Chosen chosen(backend);
    const auto dtype = backend == kFlash ? torch::kBFloat16 : torch::kFloat;
    const auto lengths = torch::tensor({int64_t{5}, int64_t{60}});
    auto cache = torch::randn({2, 2, capacity, 16}).to(dtype);
    for (int64_t b = 0; b < 2; ++b) {
      const auto used = lengths[b].item<int64_t>();
      cache[b].slice(1, used).fill_(std::numeric_limits<double>::quiet_NaN());
    }
    const auto query = torch::randn({2, 4, 1, 16}).to(dtype);
    const auto key = torch::randn({2, 2, 1, 16}).to(dtype);
    const auto run = [&](torch::Device to, const torch::Tensor& counts) {
      const auto rows = key.to(to);
      return decode({query.to(to),
                     rows,
                     rows,
                     cache.to(to).clone(),
                     cache.to(to).clone(),
                     counts})
          .cpu();
    };
    CHECK_THAT(
        run(device(), on_host ? lengths : lengths.to(device())),
        IsCloseTo(run(torch::kCPU, lengths), Tolerance(2e-2, 2e-2)));
  }
}

TEST_CASE("Equal lengths on the CPU are no lengths for LibTorch's kernels") {
  torch::manual_seed(7);
  const auto T = GENERATE(int64_t{1}, int64_t{3});
  const auto query = torch::randn({3, 8, T, 16}).to(torch::kBFloat16);
  const auto key = torch::randn({3, 2, T, 16}).to(torch::kBFloat16);
  const auto cache = torch::randn({3, 2, 256, 16}).to(torch::kBFloat16);
  const auto lengths = torch::tensor({200, 200, 200});
  const auto run = [&](torch::Device to) {
    return decode({query.to(to),
                   key.to(to),
                   key.neg().to(to),
                   cache.to(to).clone(),
                   cache.neg().to(to).clone(),
                   lengths})
        .cpu();
  };
  const auto expected = run(torch::kCPU);
  const DeviceLog log;
  CHECK_THAT(run(device()), IsCloseTo(expected, Tolerance(1e-2, 1e-2)));
  CHECK(log.count("aten::_flash_attention_forward") == 1);
  // Not the starts of sequences either.
  CHECK(log.count("aten::arange") == 0);
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
    const auto dtype = backend == kFlash ? torch::kBFloat16 : torch::kFloat;
    const auto options = torch::device(device()).dtype(dtype);
    attention->to(device(), dtype);
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
