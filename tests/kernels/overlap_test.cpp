#include <kernels/overlap.h>

#include <support/test.h>

#include <random>
#include <set>

namespace overlap_test {

using namespace torch_attention::testing;
using torch_attention::kernels::overlap;
using torch_attention::kernels::overlaps_itself;

namespace {

/// The bytes of each element, by their distance from the storage's begin.
std::vector<int64_t> bytes_of(const torch::Tensor& x) {
  std::vector<int64_t> starts = {x.storage_offset()};
  for (int64_t i = 0; i < x.dim(); ++i) {
    std::vector<int64_t> next;
    for (const auto start : starts) {
      for (int64_t n = 0; n < x.size(i); ++n) {
        next.push_back(start + n * x.stride(i));
      }
    }
    starts = next;
  }
  const auto size = static_cast<int64_t>(x.element_size());
  std::vector<int64_t> bytes;
  for (const auto start : starts) {
    for (int64_t n = 0; n < size; ++n) {
      bytes.push_back(start * size + n);
    }
  }
  return bytes;
}

std::set<int64_t> set_of(const std::vector<int64_t>& bytes) {
  return {bytes.begin(), bytes.end()};
}

} // namespace

TEST_CASE("Overlaps of random views are those of their bytes") {
  std::mt19937 random(1);
  const auto draw = [&](int64_t first, int64_t last) {
    return std::uniform_int_distribution<int64_t>(first, last)(random);
  };
  const auto memory = torch::zeros({4000});
  const auto as_halves = memory.view(torch::kHalf);
  // Draws strides of a dense layout, or any strides.
  const auto view = [&] {
    const auto& whole = draw(0, 3) == 0 ? as_halves : memory;
    const auto dim = draw(0, 4);
    std::vector<int64_t> sizes;
    std::vector<int64_t> strides;
    int64_t next = draw(1, 3);
    for (int64_t i = 0; i < dim; ++i) {
      sizes.push_back(draw(0, 12) == 0 ? 0 : draw(1, 4));
      strides.push_back(draw(0, 9) == 0 ? draw(0, 9) : next);
      next = next * sizes.back() + draw(0, 2);
    }
    return whole.as_strided(sizes, strides, draw(0, 40));
  };
  int64_t found = 0;
  for (int i = 0; i < 5000; ++i) {
    const auto a = view();
    const auto b = view();
    CAPTURE(
        a.sizes(),
        a.strides(),
        a.storage_offset(),
        a.dtype(),
        b.sizes(),
        b.strides(),
        b.storage_offset(),
        b.dtype());
    const auto bytes = bytes_of(a);
    const auto own = set_of(bytes);
    REQUIRE(overlaps_itself(a) == (own.size() != bytes.size()));
    bool shared = false;
    for (const auto byte : bytes_of(b)) {
      shared = shared || own.count(byte) > 0;
    }
    REQUIRE(overlap(a, b) == shared);
    found += shared ? 1 : 0;
  }
  // The test sees both overlapping and separate views.
  CHECK((found > 500 && found < 4500));
}

TEST_CASE("Caches in one tensor overlap only where they share rows") {
  const auto both = torch::zeros({2, 3, 100, 16});
  CHECK_FALSE(overlap(both.slice(-1, 0, 8), both.slice(-1, 8)));
  CHECK_FALSE(overlap(both[0], both[1]));
  CHECK(overlap(both.slice(-1, 0, 9), both.slice(-1, 8)));
  CHECK(overlap(both, both));
  CHECK_FALSE(overlaps_itself(both.slice(-1, 0, 8)));
  CHECK(overlaps_itself(both.narrow(0, 0, 1).expand({2, -1, -1, -1})));
  // Heads and tokens in another order, with values of another size.
  const auto rows = torch::zeros({2, 100, 3 * 24});
  const auto key = rows.slice(-1, 0, 48).view({2, 100, 3, 16}).transpose(1, 2);
  const auto value = rows.slice(-1, 48).view({2, 100, 3, 8}).transpose(1, 2);
  CHECK_FALSE(overlap(key, value));
  CHECK_FALSE(overlap(value, key));
}

} // namespace overlap_test
