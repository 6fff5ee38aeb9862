#include <support/close.h>
#include <support/failing_allocator.h>
#include <support/test.h>

#include <algorithm>
#include <cstdint>
#include <optional>
#include <vector>

namespace decode_blocks_test {

using namespace torch_attention;
using namespace torch_attention::testing;

namespace {

constexpr int64_t kContext = 512;
constexpr int64_t kWidth = 12;

/// Small modules of every kind that decodes.
std::vector<MultiHeadAttentionOptions> every_kind() {
  const MultiHeadAttentionOptions plain(kWidth, 32, kContext, 4);
  auto grouped = plain;
  grouped.num_kv_heads(2).qkv_bias(true).scale(0.4).value_dim(5);
  auto one_head = plain;
  one_head.num_kv_heads(1).head_dim(64).sinks(true).softcap(3);
  auto rotary = plain;
  rotary.num_kv_heads(2)
      .rotary(RotaryOptions())
      .window(70)
      .output_gate(OutputGateOptions());
  auto alibi = plain;
  alibi.alibi(true).window(130).temperature(TemperatureOptions(20));
  auto chunk = plain;
  chunk.chunk(50).rotary(RotaryOptions()).qk_norm(HeadNormOptions());
  auto reference = grouped;
  reference.kernel(Kernel::kReference);
  return {plain, grouped, one_head, rotary, alibi, chunk, reference};
}

MultiHeadAttention make_module(size_t kind, torch::Dtype dtype) {
  torch::manual_seed(static_cast<uint64_t>(kind));
  MultiHeadAttention attention(every_kind()[kind].register_mask(false));
  attention->to(dtype);
  attention->eval();
  if (attention->sinks.defined()) {
    const torch::NoGradGuard no_grad;
    attention->sinks.normal_();
  }
  return attention;
}

/// A cache that keeps all tokens, as a cache of blocks does.
KVCache make_slab(const MultiHeadAttention& attention, int64_t batch_size) {
  auto options = attention->make_cache(batch_size).options();
  return KVCache(options.window(std::nullopt).chunk(std::nullopt));
}

torch::Tensor draw(int64_t B, int64_t T, torch::Dtype dtype) {
  return torch::randn({B, T, kWidth}, torch::kFloat).to(dtype);
}

/// The rows of `output` of tokens that are not padding. LibTorch's products of
/// matrices, but not our kernels, depend on where in memory they are.
void check_outputs(
    const torch::Tensor& output,
    const torch::Tensor& expected,
    const torch::Tensor& counts,
    bool left,
    bool same_bits = true) {
  for (int64_t b = 0; b < output.size(0); ++b) {
    const auto n =
        counts.defined() ? counts[b].item<int64_t>() : output.size(1);
    const auto first = left ? output.size(1) - n : 0;
    const auto rows = output[b].narrow(0, first, n);
    const auto expected_rows = expected[b].narrow(0, first, n);
    if (same_bits) {
      CHECK_THAT(rows, IsEqualTo(expected_rows));
    } else {
      // Products of bfloat16 are rounded on the way.
      const auto atol = rows.scalar_type() == torch::kBFloat16 ? 1e-2 : 1e-3;
      CHECK_THAT(rows, IsCloseTo(expected_rows, {1.6e-2, atol}));
    }
  }
}

} // namespace

TEST_CASE("Decoding from blocks has the bits of decoding from a slab") {
  const auto kind = GENERATE(range(size_t{0}, every_kind().size()));
  const auto dtype =
      GENERATE(torch::kFloat, torch::kDouble, torch::kBFloat16, torch::kHalf);
  CAPTURE(kind, dtype);
  auto attention = make_module(kind, dtype);
  constexpr int64_t B = 3;
  auto slab = make_slab(attention, B);
  BlockCache cache(attention->block_cache_options().block_size(64));
  // The blocks of other sequences lie between those of these.
  std::vector<int64_t> sequences;
  for (int64_t b = 0; b < B; ++b) {
    sequences.push_back(cache.admit());
    const auto other = cache.admit();
    attention->decode(draw(1, 70, dtype), cache.batch({other}));
  }
  std::swap(sequences[0], sequences[2]);
  const auto batch = cache.batch(sequences);
  const auto decode = [&](int64_t T, const DecodeOptions& call) {
    INFO(T << " tokens");
    const auto x = draw(B, T, dtype);
    const auto output = attention->decode(x, batch, call);
    const auto expected = attention->decode(x, slab, call);
    check_outputs(
        output,
        expected,
        call.new_lengths(),
        call.left_padded(),
        attention->options.kernel() != Kernel::kReference);
    CHECK_THAT(batch.lengths(), IsEqualTo(slab.lengths()));
  };
  decode(100, torch::tensor({100, 7, 64}));
  for (int i = 0; i < 3; ++i) {
    decode(1, {});
  }
  decode(40, DecodeOptions(torch::tensor({1, 40, 23})).left_padded(true));
  decode(150, {});
  decode(1, torch::tensor({1, 0, 1}));
  decode(1, {});
}

TEST_CASE("Blocks before a window or a chunk are freed") {
  MultiHeadAttentionOptions options(kWidth, 32, kContext, 4);
  options.rotary(RotaryOptions());
  const bool in_chunks = GENERATE(false, true);
  if (in_chunks) {
    options.chunk(50);
  } else {
    options.window(20);
  }
  const auto kernel = GENERATE(Kernel::kAuto, Kernel::kReference);
  torch::manual_seed(5);
  MultiHeadAttention attention(options.kernel(kernel));
  attention->eval();
  auto slab = attention->make_cache(1);
  BlockCache cache(attention->block_cache_options().block_size(64));
  const auto id = cache.admit();
  const auto batch = cache.batch({id});
  for (const int64_t T : {50, 1, 100, 1, 60, 200, 1}) {
    const auto x = draw(1, T, torch::kFloat);
    CHECK_THAT(
        attention->decode(x, batch), IsCloseTo(attention->decode(x, slab)));
    const auto fork = cache.fork(id);
    attention->decode(draw(1, 7, torch::kFloat), cache.batch({fork}));
    cache.drop(fork);
    if (T > 1) {
      cache.truncate(id, cache.length(id) - 20);
      slab.truncate(cache.length(id));
    }
  }
  // Six blocks of 333 tokens, without those before 249 (window) or 250 (chunk).
  CHECK(cache.num_blocks() == 3);
  const auto other = [&](const BlockCacheOptions& wrong) {
    BlockCache cache_of_other(wrong);
    const auto sequence = cache_of_other.admit();
    attention->decode(
        draw(1, 1, torch::kFloat), cache_of_other.batch({sequence}));
  };
  const auto fits = attention->block_cache_options();
  THROWS_WITH(
      other(BlockCacheOptions(fits).chunk(std::nullopt).window(19)),
      "expected a cache that keeps all tokens");
  THROWS_WITH(
      other(BlockCacheOptions(fits).window(std::nullopt).chunk(30)),
      "expected a cache that keeps all tokens");
  other(BlockCacheOptions(fits).window(std::nullopt).chunk(std::nullopt));
}

TEST_CASE("Beams share their past, and go on as copies would") {
  auto attention = make_module(3, torch::kFloat);
  BlockCache cache(
      attention->block_cache_options().block_size(64).max_blocks(16));
  const auto prompt = cache.admit();
  const auto text = draw(1, 140, torch::kFloat);
  attention->decode(text, cache.batch({prompt}));
  CHECK(cache.num_blocks() == 3);
  std::vector<int64_t> beams{prompt, cache.fork(prompt), cache.fork(prompt)};
  auto slab = make_slab(attention, 3);
  attention->decode(text.expand({3, -1, -1}), slab);
  for (const auto& sources : {std::vector<int64_t>{0, 0, 2}, {2, 1, 1}}) {
    for (int i = 0; i < 5; ++i) {
      const auto x = draw(3, 1, torch::kFloat);
      CHECK_THAT(
          attention->decode(x, cache.batch(beams)),
          IsEqualTo(attention->decode(x, slab)));
    }
    std::vector<int64_t> next;
    for (const auto source : sources) {
      next.push_back(cache.fork(beams[static_cast<size_t>(source)]));
    }
    for (const auto beam : beams) {
      cache.drop(beam);
    }
    beams = next;
    slab.reorder(torch::tensor(sources));
    // Two full blocks of the prompt, and the last one of each other beam.
    CHECK(cache.num_blocks() == 4);
  }
}

TEST_CASE("Texts that come and go are decoded as if alone") {
  auto attention = make_module(1, torch::kDouble);
  BlockCache cache(attention->block_cache_options());
  std::vector<std::pair<int64_t, torch::Tensor>> texts;
  for (int step = 0; step < 40; ++step) {
    const auto id = cache.admit();
    const auto prompt = draw(1, 1 + step % 9 * 16, torch::kDouble);
    attention->decode(prompt, cache.batch({id}));
    texts.emplace_back(id, prompt);
    if (texts.size() > 4) {
      cache.drop(texts.front().first);
      texts.erase(texts.begin());
    }
    std::vector<int64_t> ids;
    for (const auto& text : texts) {
      ids.push_back(text.first);
    }
    const auto x =
        draw(static_cast<int64_t>(ids.size()), /*T=*/1, torch::kDouble);
    const auto output = attention->decode(x, cache.batch(ids));
    for (size_t b = 0; b < ids.size(); ++b) {
      auto& text = texts[b].second;
      const auto row = static_cast<int64_t>(b);
      text = torch::cat({text, x.narrow(0, row, 1)}, 1);
      const torch::NoGradGuard no_grad;
      CHECK_THAT(output[row][0], IsCloseTo(attention->forward(text)[0][-1]));
    }
  }
}

TEST_CASE("Latent attention decodes from blocks") {
  torch::manual_seed(2);
  LatentAttention attention(LatentAttentionOptions(kWidth, kWidth, kContext, 4)
                                .kv_rank(16)
                                .rope_dim(4)
                                .nope_dim(6)
                                .value_dim(5));
  attention->eval();
  auto slab = attention->make_cache(2);
  BlockCache cache(attention->block_cache_options());
  const auto batch = cache.batch({cache.admit(), cache.admit()});
  for (const int64_t T : {100, 1, 1, 3, 50, 1}) {
    const auto x = draw(2, T, torch::kFloat);
    const torch::Tensor lengths =
        T > 1 ? torch::tensor({T, T / 2}) : torch::Tensor();
    check_outputs(
        attention->decode(x, batch, lengths),
        attention->decode(x, slab, lengths),
        lengths,
        /*left=*/false);
  }
}

TEST_CASE("A call of decode that fails leaves blocks as they were") {
  auto attention = make_module(1, torch::kFloat);
  BlockCache cache(
      attention->block_cache_options().block_size(64).max_blocks(4));
  const auto a = cache.admit();
  attention->decode(draw(1, 70, torch::kFloat), cache.batch({a}));
  const auto b = cache.fork(a);
  const auto keys = cache.batch({a, b}).keys();
  const auto batch = cache.batch({a, b});
  const auto x = draw(2, 1, torch::kFloat);
  THROWS_WITH(
      attention->decode(draw(2, 70, torch::kFloat), batch),
      "2 free blocks of max_blocks = 4, but got tokens that need 4;");
  THROWS_WITH(
      attention->decode(draw(1, 1, torch::kFloat), batch),
      "as many sequences as the cache has, 2");
  THROWS_WITH(
      attention->decode(draw(2, kContext, torch::kFloat), batch),
      "at most 512 tokens (context_length)");
  THROWS_WITH(
      attention->decode(x, batch, torch::tensor({1, 2})), "new_lengths");
  BlockCache other(BlockCacheOptions(2, 7));
  THROWS_WITH(
      attention->decode(x, other.batch({other.admit(), other.admit()})),
      "expected a cache of num_kv_heads = 2, head_dim = 8");
  // A bias of wrong size is found after the tokens were appended, and memory
  // may run out anywhere.
  CHECK_THROWS_AS(
      attention->decode(
          x, batch, DecodeOptions().bias(torch::zeros({7, 7, 7}))),
      c10::Error);
  for (int64_t at = 0; at < 12; ++at) {
    const FailingAllocator failing(at);
    try {
      attention->decode(x, batch);
      break;
    } catch (const c10::Error&) {
      CHECK(cache.length(a) == 70);
      CHECK(cache.num_blocks() == 2);
    }
  }
  cache.truncate(a, 70);
  cache.truncate(b, 70);
  CHECK(batch.keys().equal(keys));
  cache.drop(b);
  THROWS_WITH(attention->decode(x, batch), "was dropped");
}

TEST_CASE("LongRoPE rotates the texts of a batch alike") {
  const auto pairs = std::vector<double>(4, 1.0);
  MultiHeadAttention attention(
      MultiHeadAttentionOptions(kWidth, 32, kContext, 4)
          .rotary(RotaryOptions()
                      .scaling(RotaryScaling::kLongRope)
                      .original_context_length(32)
                      .factor(4)
                      .short_factors(pairs)
                      .long_factors(std::vector<double>(4, 2.0))));
  attention->eval();
  BlockCache cache(attention->block_cache_options());
  const auto text = cache.admit();
  const auto longer = cache.admit();
  attention->decode(draw(1, 10, torch::kFloat), cache.batch({text}));
  attention->decode(draw(1, 50, torch::kFloat), cache.batch({longer}));
  attention->decode(draw(1, 1, torch::kFloat), cache.batch({text}));
  THROWS_WITH(
      attention->decode(draw(2, 1, torch::kFloat), cache.batch({text, longer})),
      "original_context_length = 32");
  CHECK(cache.length(text) == 11);
}

} // namespace decode_blocks_test
