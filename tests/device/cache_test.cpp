// Caches of the device, and decoding with them.

#include <device/log.h>
#include <device/memory.h>

#include <support/close.h>
#include <support/decode.h>
#include <support/test.h>

#include <functional>

namespace device_cache_test {

using namespace torch_attention;
using namespace torch_attention::testing;

namespace {

constexpr int64_t kIn = 12;
constexpr int64_t kContext = 60;

MultiHeadAttentionOptions options() {
  return MultiHeadAttentionOptions(kIn, 32, kContext, 4)
      .num_kv_heads(2)
      .rotary(RotaryOptions());
}

/// One cache on the CPU and one on the device, to which the same is done.
class Caches {
 public:
  explicit Caches(const KVCacheOptions& made)
      : host_(made), moved_(KVCacheOptions(made).device(device())) {}

  void append(int64_t T, const torch::Tensor& counts = {}) {
    const auto& has = host_.options();
    const auto rows = [&](int64_t size) {
      return torch::randn({has.batch_size(), has.num_kv_heads(), T, size})
          .to(has.dtype());
    };
    const auto keys = rows(has.head_dim());
    const auto values = has.values_in_keys()
        ? torch::Tensor()
        : rows(has.value_dim().value_or(has.head_dim()));
    host_.append(keys, values, counts);
    moved_.append(
        keys.to(device()),
        values.defined() ? values.to(device()) : values,
        counts.defined() ? counts.to(device()) : counts);
    check();
  }

  void change(const std::function<void(KVCache&)>& fn) {
    fn(host_);
    fn(moved_);
    check();
  }

  KVCache& moved() {
    return moved_;
  }

 private:
  void check() const {
    CHECK_THAT(moved_.lengths(), IsEqualTo(host_.lengths()));
    CHECK_THAT(moved_.starts(), IsEqualTo(host_.starts()));
    CHECK(moved_.capacity() == host_.capacity());
    const auto rows = host_.lengths() - host_.starts();
    for (int64_t b = 0; b < rows.size(0); ++b) {
      const auto n = rows[b].item<int64_t>();
      const auto used = [&](const torch::Tensor& x) {
        return x[b].slice(1, 0, n).cpu();
      };
      CHECK_THAT(used(moved_.keys()), IsEqualTo(used(host_.keys())));
      CHECK_THAT(used(moved_.values()), IsEqualTo(used(host_.values())));
    }
  }

  KVCache host_;
  KVCache moved_;
};

void use(Caches& caches) {
  caches.append(5);
  caches.append(1);
  caches.append(4, torch::tensor({4, 0, 1}));
  caches.change([](KVCache& cache) { cache.truncate(7); });
  caches.append(1);
  caches.change([](KVCache& cache) {
    cache.truncate(torch::tensor({8, 6, 6}));
  });
  caches.change([](KVCache& cache) {
    cache.reorder(torch::tensor({1, 0, 0}));
  });
  caches.append(2, torch::tensor({2, 1, 2}));
  caches.change([](KVCache& cache) { cache.reserve(30); });
  caches.append(9);
  caches.change([](KVCache& cache) { cache = cache.clone(); });
  caches.append(1);
  caches.change([](KVCache& cache) { cache.reset(); });
  caches.append(3);
}

/// Returns the module and a copy of it on the device.
std::pair<MultiHeadAttention, MultiHeadAttention> pair_of(
    const MultiHeadAttentionOptions& made) {
  MultiHeadAttention module(made);
  module->eval();
  const auto copy = std::dynamic_pointer_cast<MultiHeadAttentionImpl>(
      module->clone(device()));
  return {module, MultiHeadAttention(copy)};
}

} // namespace

TEST_CASE("Caches of the device hold what caches of the CPU hold") {
  torch::manual_seed(1);
  const KVCacheOptions made(3, 2, 8);
  SECTION("all tokens") {
    Caches caches(KVCacheOptions(made).block(4));
    use(caches);
  }
  SECTION("a window") {
    Caches caches(KVCacheOptions(made).block(4).window(6));
    use(caches);
  }
  SECTION("chunks") {
    Caches caches(KVCacheOptions(made).block(4).chunk(5));
    use(caches);
  }
  SECTION("values of another size, in half precision") {
    Caches caches(
        KVCacheOptions(made).block(4).value_dim(3).dtype(torch::kHalf));
    use(caches);
  }
  SECTION("values in keys") {
    Caches caches(
        KVCacheOptions(made).block(4).value_dim(3).values_in_keys(true));
    use(caches);
  }
}

TEST_CASE("A cache moves to the device and back") {
  torch::manual_seed(2);
  KVCache cache(KVCacheOptions(2, 2, 8));
  const auto rows = torch::randn({2, 2, 5, 8});
  cache.append(rows, -rows);
  cache.to(device());
  CHECK(cache.options().device() == device());
  CHECK(cache.keys().device() == device());
  cache.append(rows.to(device()), -rows.to(device()));
  CHECK_THROWS_AS(cache.append(rows, -rows), c10::Error);
  cache.to(torch::kCPU, torch::kDouble);
  CHECK_THAT(
      cache.keys(), IsEqualTo(torch::cat({rows, rows}, 2).to(torch::kDouble)));
}

TEST_CASE("Modules decode on the device as on the CPU") {
  torch::manual_seed(3);
  const torch::NoGradGuard no_grad;
  const auto made = GENERATE(
      options(),
      options().window(5),
      options().chunk(6),
      options().sinks(true),
      options().alibi(true),
      options().softcap(5));
  auto [module, moved] = pair_of(made);
  const auto x = torch::randn({3, 20, kIn});
  const auto expected = module(x);
  auto cache = moved->make_cache(3);
  CHECK_THAT(
      decode_in_chunks(moved, cache, x.to(device()), {9, 5, 1}).cpu(),
      IsCloseTo(expected, {1e-4, 1e-4}));
}

TEST_CASE("Sequences of different lengths decode on the device") {
  torch::manual_seed(4);
  const torch::NoGradGuard no_grad;
  const auto made = GENERATE(options(), options().window(5));
  auto [module, moved] = pair_of(made);
  auto host_cache = module->make_cache(3);
  auto cache = moved->make_cache(3);
  const auto step = [&, &host = module, &there = moved](
                        int64_t T, const torch::Tensor& counts) {
    const auto x = torch::randn({3, T, kIn});
    const auto expected = host->decode(x, host_cache, counts);
    const auto actual =
        there->decode(x.to(device()), cache, counts.to(device())).cpu();
    for (int64_t b = 0; b < 3; ++b) {
      const auto n = counts[b].item<int64_t>();
      CHECK_THAT(
          actual[b].slice(0, 0, n),
          IsCloseTo(expected[b].slice(0, 0, n), {1e-4, 1e-4}));
    }
  };
  step(6, torch::tensor({6, 2, 4}));
  step(1, torch::tensor({1, 1, 1}));
  step(3, torch::tensor({0, 3, 2}));
  step(1, torch::tensor({1, 1, 1}));
}

TEST_CASE("Latent attention decodes on the device") {
  torch::manual_seed(5);
  const torch::NoGradGuard no_grad;
  LatentAttention module(LatentAttentionOptions(kIn, 16, kContext, 4)
                             .kv_rank(4)
                             .nope_dim(6)
                             .rope_dim(4)
                             .value_dim(5));
  module->eval();
  const auto x = torch::randn({2, 8, kIn});
  const auto expected = module(x);
  module->to(device());
  auto cache = module->make_cache(2);
  std::vector<torch::Tensor> outputs;
  for (int64_t begin = 0; begin < 8; begin += begin == 0 ? 5 : 1) {
    const auto end = begin == 0 ? 5 : begin + 1;
    outputs.push_back(
        module->decode(x.slice(1, begin, end).to(device()), cache).cpu());
  }
  CHECK_THAT(torch::cat(outputs, 1), IsCloseTo(expected, {1e-4, 1e-4}));
}

TEST_CASE("A decode step with even lengths does not wait for the device") {
  torch::manual_seed(6);
  const torch::NoGradGuard no_grad;
  auto [module, moved] = pair_of(options());
  auto cache = moved->make_cache(2);
  moved->decode(torch::randn({2, 5, kIn}).to(device()), cache);
  const auto token = torch::randn({2, 1, kIn}).to(device());
  const DeviceLog log;
  moved->decode(token, cache);
  CHECK(log.waits().empty());
}

} // namespace device_cache_test
