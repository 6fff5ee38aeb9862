// Bits of sequences of a cache of blocks, alone and in any batch.

#include <support/close.h>
#include <support/same_bits.h>
#include <support/sanitized.h>
#include <support/test.h>

#include <torch_attention/nn/block_cache.h>
#include <torch_attention/nn/modules/multi_head_attention.h>

#include <ATen/Context.h>
#include <ATen/Parallel.h>

#include <algorithm>
#include <cmath>
#include <random>
#include <vector>

namespace modules_same_bits_test {

using namespace torch_attention;
using namespace torch_attention::testing;

namespace {

constexpr int64_t kWidth = 44;

/// The text of a sequence, and its outputs when computed alone at once.
struct Text {
  torch::Tensor x; // (T, kWidth)
  torch::Tensor expected; // (T, d_out)
  int64_t sequence = 0;
  int64_t computed = 0;
};

std::vector<MultiHeadAttentionOptions> kinds() {
  const MultiHeadAttentionOptions plain(kWidth, 60, 1024, 4);
  auto grouped = plain;
  grouped.num_kv_heads(2).qkv_bias(true).softcap(20).value_dim(9);
  auto rotary = plain;
  rotary.num_kv_heads(1).head_dim(64).rotary(RotaryOptions()).window(150);
  auto gated = rotary;
  gated.output_gate(OutputGateOptions())
      .sinks(true)
      .temperature(TemperatureOptions(20));
  return {plain, grouped, rotary, gated};
}

std::vector<Text> make_texts(
    MultiHeadAttention& attention,
    BlockCache& cache,
    torch::Dtype dtype) {
  std::vector<Text> texts;
  for (const auto length :
       std::vector<int64_t>{unless_sanitized(500, 170), 90, 64, 5}) {
    const auto x = torch::randn({length, kWidth}).to(dtype);
    BlockCache alone(cache.options());
    // For int8, keys and values have to be rounded the same way.
    const auto expected = cache.options().dtype() == torch::kInt8
        ? attention->decode(x.unsqueeze(0), alone.batch({alone.admit()}))
        : attention->forward(x.unsqueeze(0));
    texts.push_back({x, expected[0], cache.admit(), 0});
  }
  return texts;
}

/// Decodes pieces of the same number of tokens of some texts, and checks them.
void decode_some(
    MultiHeadAttention& attention,
    const BlockCache& cache,
    std::vector<Text*> texts,
    std::mt19937& random) {
  std::shuffle(texts.begin(), texts.end(), random);
  texts.resize(1 + random() % texts.size());
  int64_t n = std::vector<int64_t>{1, 4, 30, 200}[random() % 4];
  std::vector<int64_t> sequences;
  for (const auto* text : texts) {
    n = std::min(n, text->x.size(0) - text->computed);
    sequences.push_back(text->sequence);
  }
  std::vector<torch::Tensor> x;
  for (const auto* text : texts) {
    x.push_back(text->x.narrow(0, text->computed, n));
  }
  at::set_num_threads(1 + static_cast<int>(random() % 2));
  const auto outputs =
      attention->decode(torch::stack(x), cache.batch(sequences));
  for (size_t b = 0; b < texts.size(); ++b) {
    auto& text = *texts[b];
    CAPTURE(b, texts.size(), n, text.computed);
    CHECK(torch::equal(
        outputs[static_cast<int64_t>(b)],
        text.expected.narrow(0, text.computed, n)));
    text.computed += n;
  }
}

} // namespace

TEST_CASE("Sequences of any batch of a cache of blocks have the same bits") {
  const auto dtype = GENERATE(torch::kFloat, torch::kBFloat16, torch::kHalf);
  const bool is_int8 = GENERATE(false, true);
  const auto kind = GENERATE(range(size_t{0}, kinds().size()));
  CAPTURE(dtype, is_int8, kind);
  const torch::NoGradGuard no_grad;
  const SameBits same_bits;
  const auto threads = at::get_num_threads();
  torch::manual_seed(static_cast<uint64_t>(kind));
  std::mt19937 random(5);
  MultiHeadAttention attention(kinds()[kind].register_mask(false));
  attention->to(dtype);
  attention->eval();
  BlockCache cache(attention->block_cache_options().block_size(64).dtype(
      is_int8 ? torch::kInt8 : dtype));
  auto texts = make_texts(attention, cache, dtype);
  while (true) {
    std::vector<Text*> left;
    for (auto& text : texts) {
      if (text.computed < text.x.size(0)) {
        left.push_back(&text);
      }
    }
    if (left.empty()) {
      break;
    }
    decode_some(attention, cache, left, random);
  }
  at::set_num_threads(threads);
}

TEST_CASE("Pairs of bfloat16 are not taken for floats") {
  // Next to a zero, a number's bits are those of a denormal float, which the
  // processor may flush; next to infinity they are those of NaN.
  const int64_t T = GENERATE(1, 8, 12, 40);
  const bool is_infinite = GENERATE(false, true);
  CAPTURE(T, is_infinite);
  torch::manual_seed(8);
  const auto draw = [](int64_t n) {
    return torch::randn({1, 2, n, 64}, torch::kBFloat16);
  };
  const auto query = draw(T).abs().add(0.1);
  auto key = draw(100);
  const auto value = draw(100);
  const auto odd = key.slice(3, 1, std::nullopt, 2);
  odd.zero_();
  if (is_infinite) {
    odd.slice(2, 3, 5).fill_(-INFINITY);
  }
  const auto weight = key[0][0];
  const auto attend = [&](Kernel kernel, torch::ScalarType as) {
    using Options = functional::ScaledDotProductAttentionFuncOptions;
    return functional::scaled_dot_product_attention(
        query.to(as), key.to(as), value.to(as), Options().kernel(kernel));
  };
  const auto expected = attend(Kernel::kReference, torch::kFloat);
  const auto layer =
      torch::linear(query.to(torch::kFloat), weight.to(torch::kFloat));
  const SameBits same_bits;
  const auto threads = at::get_num_threads();
  at::set_num_threads(1);
  at::globalContext().setFlushDenormal(true);
  const auto found = attend(Kernel::kFused, torch::kBFloat16);
  const auto found_layer = functional::linear(query, weight);
  at::globalContext().setFlushDenormal(false);
  at::set_num_threads(threads);
  // Weights, and outputs, are rounded to 8 bits.
  CHECK_THAT(found.to(torch::kFloat), IsCloseTo(expected, {0.02, 0.02}));
  CHECK_THAT(found_layer.to(torch::kFloat), IsCloseTo(layer, {0.02, 0.02}));
}

} // namespace modules_same_bits_test
