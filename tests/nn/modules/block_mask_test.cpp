// Masks as tiles in modules, and their errors. tests/random/masks.cpp compares
// drawn expressions with tensors of all queries and keys.

#include <support/close.h>
#include <support/test.h>

#include <torch/csrc/jit/frontend/tracer.h>

#include <thread>
#include <vector>

namespace block_mask_test {

using namespace torch_attention;
using namespace torch_attention::testing;
namespace F = torch_attention::functional;

namespace {

constexpr int64_t kTokens = 150;

/// Documents of 2 sequences, with tokens of none at the end.
torch::Tensor document_ids() {
  auto ids = torch::arange(kTokens).floor_divide(40).repeat({2, 1});
  ids[1].add_(torch::arange(kTokens).gt(70));
  ids.slice(1, kTokens - 5).fill_(-1);
  return ids;
}

MaskMod documents_and_prefix() {
  return (MaskMod::causal() & MaskMod::documents(document_ids())) |
      MaskMod::prefix(torch::tensor({3, 80}));
}

BlockMask mask_of(
    const MaskMod& mod,
    int64_t num_heads = 1,
    int64_t tokens = kTokens) {
  return {mod, BlockMaskOptions(tokens).batch_size(2).num_heads(num_heads)};
}

/// Returns the output and the gradients of the input and all parameters.
template <typename Module>
std::vector<torch::Tensor> computed(
    Module module,
    const torch::Tensor& input,
    const ForwardOptions& call) {
  const auto x = input.detach().clone().requires_grad_();
  module->zero_grad();
  const auto y = module->forward(x, call);
  y.sin().sum().backward();
  std::vector<torch::Tensor> results{y, x.grad()};
  for (const auto& parameter : module->parameters()) {
    results.push_back(parameter.grad().clone());
  }
  return results;
}

template <typename Module>
void check_module(const Module& module, const BlockMask& mask) {
  const auto x = torch::randn({2, kTokens, 8});
  auto hidden = mask.hidden();
  if (mask.num_heads() == 1) {
    hidden = hidden.squeeze(1);
  }
  const auto as_scores = module->name().find("Causal") == std::string::npos &&
          mask.num_heads() == 1
      ? hidden.unsqueeze(1)
      : hidden;
  check_all_close(
      computed(module, x, ForwardOptions().block_mask(mask)),
      computed(module, x, ForwardOptions().mask(as_scores)));
}

MultiHeadAttention multi_head(bool causal = true) {
  return MultiHeadAttention(
      MultiHeadAttentionOptions(8, 8, kTokens, /*num_heads=*/4)
          .num_kv_heads(2)
          .causal(causal)
          .rotary(RotaryOptions()));
}

} // namespace

TEST_CASE("modules compute block masks as they compute masks") {
  torch::manual_seed(1);
  const auto mod = documents_and_prefix();
  check_module(multi_head(), mask_of(mod));
  check_module(multi_head(/*causal=*/false), mask_of(mod));
  const auto by_head = MaskMod::function(
      [](const auto& /*b*/, const auto& h, const auto& q, const auto& k) {
        return (q - k).remainder(h + 1).eq(0);
      });
  check_module(multi_head(), mask_of(mod | by_head, 4));
  check_module(CausalAttention(8, 4, kTokens, 0.0), mask_of(mod));
  check_module(
      MultiHeadAttentionWrapper(8, 4, kTokens, 0.0, /*num_heads=*/4),
      mask_of(by_head, 4));
  // Heads that differ are computed one by one.
  MultiHeadAttentionWrapper wrapper(8, 4, kTokens, 0.0, /*num_heads=*/2);
  (*wrapper->heads)[1]->as<CausalAttentionImpl>()->options.window(7);
  check_module(wrapper, mask_of(by_head, 2));
}

TEST_CASE("block masks have the masks' place beside all other arguments") {
  torch::manual_seed(2);
  auto attention = multi_head();
  const auto mask = mask_of(documents_and_prefix());
  const auto padding = torch::rand({2, kTokens}).lt(0.2);
  const auto own = torch::rand({2, 4, kTokens, kTokens}).lt(0.3);
  const auto bias = torch::randn({4, kTokens, kTokens}).unsqueeze(0);
  const auto lengths = torch::tensor({kTokens, kTokens - 20});
  const auto call =
      ForwardOptions().key_padding_mask(padding).bias(bias).key_lengths(
          lengths);
  const auto x = torch::randn({2, kTokens, 8});
  auto both = call;
  both.mask(own).block_mask(mask);
  auto one = call;
  one.mask(own.logical_or(mask.hidden()));
  check_all_close(computed(attention, x, both), computed(attention, x, one));

  const auto [context, weights] = attention->forward_with_weights(x, both);
  CHECK_THAT(context, IsCloseTo(attention->forward(x, one)));
  CHECK(weights.masked_select(mask.hidden().expand_as(weights))
            .eq(0)
            .all()
            .item<bool>());
}

TEST_CASE("packed sequences read the block mask of the padded batch") {
  torch::manual_seed(3);
  auto attention = multi_head();
  const auto mask = mask_of(documents_and_prefix());
  const auto x = torch::randn({2, kTokens, 8});
  const auto padded = attention->forward(x, ForwardOptions().block_mask(mask));
  const auto packed = attention->forward(
      torch::cat({x[0], x[1].slice(0, 0, 90)}),
      ForwardOptions()
          .cu_seqlens(torch::tensor({int64_t{0}, kTokens, kTokens + 90}))
          .block_mask(mask));
  CHECK_THAT(
      packed, IsCloseTo(torch::cat({padded[0], padded[1].slice(0, 0, 90)})));
}

TEST_CASE("decode reads the rows of block masks for its new tokens") {
  torch::manual_seed(4);
  const torch::NoGradGuard no_grad;
  auto attention = multi_head();
  const auto mod = documents_and_prefix() | MaskMod::window(5);
  const auto x = torch::randn({2, kTokens, 8});
  const auto expected =
      attention->forward(x, ForwardOptions().block_mask(mask_of(mod)));
  auto cache = attention->make_cache(/*batch_size=*/2);
  std::vector<torch::Tensor> parts;
  for (const auto& [begin, end] : {std::pair{0, 100}, {100, 101}, {101, 150}}) {
    const BlockMask mask(
        mod,
        BlockMaskOptions(end - begin, end)
            .batch_size(2)
            .query_offsets(cache.lengths()));
    parts.push_back(attention->decode(
        x.slice(1, begin, end), cache, DecodeOptions().block_mask(mask)));
  }
  CHECK_THAT(torch::cat(parts, 1), IsCloseTo(expected));

  const auto lengths = cache.lengths();
  cache.truncate(100);
  THROWS_WITH(
      attention->decode(
          x.slice(1, 100, 101),
          cache,
          DecodeOptions().block_mask(mask_of(mod))),
      "expected a block_mask for the scores [2, 4, 1, 101], each of its "
      "sequences and heads or 1, but got one for [2, 1, 150, 150]");
  CHECK(cache.lengths().eq(100).all().item<bool>());
}

TEST_CASE("cross-attention takes block masks for its queries and keys") {
  torch::manual_seed(5);
  CrossAttention attention(CrossAttentionOptions(8, 8, 8, /*num_heads=*/2));
  const auto x = torch::randn({2, 70, 8});
  const auto context = torch::randn({2, 90, 8});
  const auto ids = torch::randint(0, 3, {2, 70});
  const auto key_ids = torch::randint(0, 3, {2, 90});
  const BlockMask mask(
      MaskMod::documents(ids, key_ids),
      BlockMaskOptions(70, 90).batch_size(2).query_offsets(
          torch::zeros({1}, torch::kLong)));
  CHECK_THAT(
      attention->forward(x, context, ForwardOptions().block_mask(mask)),
      IsCloseTo(attention->forward(
          x, context, ForwardOptions().mask(mask.hidden()))));
}

TEST_CASE("tiles that no query sees are not stored") {
  constexpr int64_t T = 4096;
  const BlockMask documents(
      MaskMod::causal() &
          MaskMod::documents(torch::arange(T).floor_divide(128)),
      BlockMaskOptions(T));
  // In each document the lower 3 of 2 x 2 tiles.
  CHECK(documents.density() == Approx(32.0 * 3 / (64 * 64)));
  // Tiles on a diagonal share their bits.
  CHECK(documents.nbytes() < 8000);
  const BlockMask none(
      MaskMod::prefix(int64_t{0}) & MaskMod::causal(), BlockMaskOptions(T));
  CHECK(none.density() == 0);
  const auto x = torch::randn({1, 1, T, 4}).requires_grad_();
  const auto y = F::scaled_dot_product_attention(
      x, x, x, F::ScaledDotProductAttentionFuncOptions().block_mask(none));
  y.sum().backward();
  CHECK(y.eq(0).all().item<bool>());
  CHECK(x.grad().eq(0).all().item<bool>());
}

TEST_CASE("functions are called only where other rules do not decide") {
  int64_t calls = 0;
  int64_t pairs = 0;
  const auto counted = MaskMod::function(
      [&](const auto& /*b*/, const auto& /*h*/, const auto& q, const auto& k) {
        ++calls;
        pairs += q.numel() * k.numel();
        return k.le(q);
      });
  constexpr int64_t T = 1024;
  const auto ids = torch::arange(T).floor_divide(256);
  const BlockMask mask(MaskMod::documents(ids) & counted, BlockMaskOptions(T));
  CHECK(calls == T / 64);
  CHECK(pairs == T * 256);
  CHECK(mask.hidden().equal(
      mask_of(MaskMod::documents(ids) & MaskMod::causal(), 1, T)
          .hidden()
          .slice(0, 0, 1)));
}

TEST_CASE("block masks serve several threads, and outlive what made them") {
  auto ids = torch::arange(kTokens).floor_divide(50);
  const auto mod = MaskMod::causal() & MaskMod::documents(ids);
  ids.zero_(); // The mask has a copy.
  const auto expected =
      mask_of(
          MaskMod::causal() &
          MaskMod::documents(torch::arange(kTokens).floor_divide(50)))
          .hidden();
  std::vector<torch::Tensor> found(4);
  std::vector<std::thread> threads;
  for (auto& each : found) {
    threads.emplace_back([&] { each = mask_of(mod).hidden(); });
  }
  for (auto& thread : threads) {
    thread.join();
  }
  for (const auto& each : found) {
    CHECK(each.equal(expected));
  }
}

TEST_CASE("block masks refuse what does not fit") {
  const auto causal = MaskMod::causal();
  THROWS_WITH(
      BlockMask(causal, BlockMaskOptions(1, 100)),
      "expected query_offsets, the position of the first query, for 1 queries "
      "and 100 keys: 99 if");
  THROWS_WITH(
      BlockMask(causal, BlockMaskOptions(-1)),
      "expected num_queries in [0, 2^40], but got -1");
  THROWS_WITH(
      BlockMask(causal, BlockMaskOptions(int64_t{1} << 40).num_heads(1 << 20)),
      "expected sizes that fit into memory");
  THROWS_WITH(
      BlockMask(
          causal,
          BlockMaskOptions(4).batch_size(2).query_offsets(
              torch::zeros({3}, torch::kLong))),
      "expected query_offsets of an integer dtype and shape (batch_size) = [2] "
      "or (1), but got Long of shape [3]");
  THROWS_WITH(
      BlockMask(
          MaskMod::documents(torch::zeros({3, 8}, torch::kLong)),
          BlockMaskOptions(8).batch_size(2)),
      "expected ids for all sequences or for each of batch_size = 2, but got "
      "them for 3");
  THROWS_WITH(
      BlockMask(
          MaskMod::documents(torch::zeros({8}, torch::kLong)),
          BlockMaskOptions(9)),
      "expected ids for all positions, of which the last is 8, but got 8 of "
      "them");
  THROWS_WITH(
      BlockMask(
          MaskMod::documents(torch::zeros({8}, torch::kLong)),
          BlockMaskOptions(4).query_offsets(torch::tensor({-1}))),
      "and none below 0");
  THROWS_WITH(
      MaskMod::documents(torch::zeros({8})),
      "expected ids of an integer dtype and shape (L) or (B, L), but got Float "
      "of shape [8]");
  THROWS_WITH(MaskMod::window(0), "expected window > 0, but got 0");
  THROWS_WITH(MaskMod::window(3, -1), "expected window_after >= 0, but got -1");
  THROWS_WITH(MaskMod::chunk(-2), "expected chunk > 0, but got -2");
  THROWS_WITH(
      MaskMod::packed_documents(torch::tensor({0, 5, 3})),
      "expected cu_seqlens that do not decrease");
  THROWS_WITH(MaskMod::prefix(torch::Tensor()), "an undefined tensor");
  THROWS_WITH(MaskMod::function(nullptr), "expected a function");
  const auto numbers = MaskMod::function(
      [](const auto& /*b*/, const auto& /*h*/, const auto& q, const auto& k) {
        return q + k;
      });
  THROWS_WITH(
      mask_of(numbers),
      "expected a function that gives a bool tensor on the CPU that broadcasts "
      "to (Q, K)");
}

TEST_CASE("attention refuses block masks of other sizes") {
  const auto attend = [](torch::IntArrayRef sizes, const BlockMask& mask) {
    const auto x = torch::randn(sizes);
    return F::scaled_dot_product_attention(
        x, x, x, F::ScaledDotProductAttentionFuncOptions().block_mask(mask));
  };
  const auto causal = MaskMod::causal();
  const BlockMask mask(causal, BlockMaskOptions(6).batch_size(2).num_heads(3));
  CHECK_NOTHROW(attend({2, 3, 6, 4}, mask));
  for (const auto& sizes : std::vector<std::vector<int64_t>>{
           {2, 3, 5, 4},
           {3, 3, 6, 4},
           {2, 2, 6, 4},
           {2, 6, 4},
           {6, 4},
           {2, 2, 3, 6, 4}}) {
    THROWS_WITH(attend(sizes, mask), "expected a block_mask for the scores");
  }
  CHECK_NOTHROW(attend({7, 6, 4}, BlockMask(causal, BlockMaskOptions(6))));
  CHECK_NOTHROW(attend({6, 4}, BlockMask(causal, BlockMaskOptions(6))));
}

TEST_CASE("packed block masks are checked") {
  const auto packed = mask_of(documents_and_prefix()).packed();
  CHECK_NOTHROW(BlockMask::unpack(packed.clone()));
  THROWS_WITH(BlockMask::unpack(torch::Tensor()), "undefined");
  THROWS_WITH(
      BlockMask::unpack(packed.to(torch::kInt)), "expected a contiguous int64");
  THROWS_WITH(
      BlockMask::unpack(packed.slice(0, 0, -1).clone()), "numbers for a mask");
  // Whatever the numbers are, reading them stays within their memory.
  torch::manual_seed(6);
  int64_t refused = 0;
  for (int64_t i = 0; i < 2000; ++i) {
    auto changed = packed.clone();
    const auto at =
        torch::randint(0, i % 2 == 0 ? 40 : packed.numel(), {1}, torch::kLong);
    const auto number = i % 3 == 0 ? torch::randint(-5, 5, {1}, torch::kLong)
                                   : torch::randint(
                                         std::numeric_limits<int64_t>::min(),
                                         std::numeric_limits<int64_t>::max(),
                                         {1},
                                         torch::kLong);
    changed.index_put_({at}, number);
    try {
      const auto mask = BlockMask::unpack(changed);
      CHECK(mask.hidden().numel() >= 0);
    } catch (const c10::Error&) {
      ++refused;
    }
  }
  CHECK(refused > 500);
}

} // namespace block_mask_test
