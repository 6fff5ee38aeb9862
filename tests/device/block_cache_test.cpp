// Caches in blocks, and caches of int8, on the device.

#include <device/memory.h>

#include <support/close.h>
#include <support/test.h>

#include <memory>
#include <vector>

namespace device_block_cache_test {

using namespace torch_attention;
using namespace torch_attention::testing;

namespace {

constexpr int64_t kIn = 24;
constexpr int64_t kHeads = 4;
constexpr int64_t kGroups = 2;

MultiHeadAttentionOptions options() {
  return MultiHeadAttentionOptions(kIn, 32, 400, kHeads)
      .num_kv_heads(kGroups)
      .rotary(RotaryOptions());
}

/// A module with its cache in blocks, on one device.
struct Side {
  Side(
      std::shared_ptr<MultiHeadAttentionImpl> module_,
      const BlockCacheOptions& made)
      : module(std::move(module_)), cache(made) {}

  torch::Tensor decode(
      const torch::Tensor& x,
      const std::vector<int64_t>& sequences,
      const torch::Tensor& counts = {}) {
    DecodeOptions call;
    if (counts.defined()) {
      call.new_lengths(counts);
    }
    return module
        ->decode(x.to(cache.options().device()), cache.batch(sequences), call)
        .cpu();
  }

  std::shared_ptr<MultiHeadAttentionImpl> module;
  BlockCache cache;
};

/// Two caches, on the CPU and on the device, of which one life is compared.
class Sides {
 public:
  Sides(const MultiHeadAttentionOptions& made, const BlockCacheOptions& cache)
      : Sides(std::make_shared<MultiHeadAttentionImpl>(made), cache) {}

  template <typename Fn>
  auto both(const Fn& fn) {
    const auto result = fn(host_.cache);
    CHECK(fn(there_.cache) == result);
    return result;
  }

  void decode(
      int64_t T,
      const std::vector<int64_t>& sequences,
      const torch::Tensor& counts = {}) {
    const auto B = static_cast<int64_t>(sequences.size());
    const auto x = torch::randn({B, T, kIn});
    const auto expected = host_.decode(x, sequences, counts);
    const auto found = there_.decode(x, sequences, counts);
    for (int64_t b = 0; b < B; ++b) {
      const auto n = counts.defined() ? counts[b].item<int64_t>() : T;
      CHECK_THAT(
          found[b].slice(0, 0, n),
          IsCloseTo(expected[b].slice(0, 0, n), tolerance_));
    }
  }

 private:
  Sides(
      const std::shared_ptr<MultiHeadAttentionImpl>& module,
      const BlockCacheOptions& cache)
      : host_(module, cache),
        there_(
            std::dynamic_pointer_cast<MultiHeadAttentionImpl>(
                module->clone(device())),
            BlockCacheOptions(cache).device(device())) {
    // Numbers that differ by rounding become other integers.
    tolerance_ = cache.dtype() == torch::kInt8 ? Tolerance(2e-2, 2e-2)
                                               : Tolerance(1e-4, 1e-4);
  }

  Side host_;
  Side there_;
  Tolerance tolerance_{0, 0};
};

} // namespace

TEST_CASE("Sequences in blocks decode on the device as on the CPU") {
  torch::manual_seed(1);
  const torch::NoGradGuard no_grad;
  const auto dtype = GENERATE(torch::kFloat, torch::kInt8);
  const auto window =
      GENERATE(std::optional<int64_t>(), std::optional<int64_t>(70));
  CAPTURE(dtype, window.has_value());
  auto made = options();
  BlockCacheOptions cache(kGroups, 8);
  cache.block_size(64).dtype(dtype);
  if (window) {
    made.window(*window);
    cache.window(*window);
  }
  Sides sides(made, cache);
  const auto admit = [](BlockCache& x) { return x.admit(); };
  const auto first = sides.both(admit);
  const auto second = sides.both(admit);
  sides.decode(150, {first, second}, torch::tensor({150, 20}));
  sides.decode(1, {second, first});
  const auto third = sides.both([&](BlockCache& x) { return x.fork(first); });
  sides.decode(3, {third, second, first}, torch::tensor({3, 1, 2}));
  sides.both([&](BlockCache& x) {
    x.drop(first);
    x.truncate(third, 140);
    return x.num_blocks();
  });
  sides.decode(1, {third, second});
  sides.decode(80, {second});
  sides.decode(1, {second, third});
}

TEST_CASE("A cache of int8 decodes on the device as on the CPU") {
  torch::manual_seed(2);
  const torch::NoGradGuard no_grad;
  MultiHeadAttention module(options());
  module->eval();
  const auto moved = std::dynamic_pointer_cast<MultiHeadAttentionImpl>(
      module->clone(device()));
  const KVCacheOptions made(2, kGroups, 8);
  KVCache host(KVCacheOptions(made).dtype(torch::kInt8));
  KVCache there(KVCacheOptions(made).dtype(torch::kInt8).device(device()));
  for (const auto T : {40, 1, 5, 1}) {
    const auto x = torch::randn({2, T, kIn});
    CHECK_THAT(
        moved->decode(x.to(device()), there).cpu(),
        IsCloseTo(module->decode(x, host), Tolerance(2e-2, 2e-2)));
  }
  CHECK_THAT(there.keys().cpu(), IsCloseTo(host.keys(), Tolerance(1e-2, 1e-2)));
}

} // namespace device_block_cache_test
