#include <support/close.h>
#include <support/test.h>

namespace relative_bias_test {

using namespace torch_attention;
using namespace torch_attention::testing;

namespace {

/// Distances from query to key.
const std::vector<int64_t> kDistances{
    -300, -129, -128, -127, -100, -64, -63, -40, -20, -17, -16, -15,
    -9,   -8,   -7,   -3,   -1,   0,   1,   2,   5,   7,   8,   9,
    12,   15,   16,   17,   25,   33,  64,  90,  127, 128, 500};

struct Row {
  RelativeBiasOptions options;
  /// `_relative_position_bucket` of T5 in transformers 5.23.
  std::vector<int64_t> buckets;
};

} // namespace

TEST_CASE("RelativeBias has T5's buckets") {
  const auto row = GENERATE(values<Row>({
      {RelativeBiasOptions(1),
       {15, 15, 15, 15, 15, 14, 13, 12, 10, 10, 10, 9,  8,  8,  7,  3,  1, 0,
        17, 18, 21, 23, 24, 24, 25, 25, 26, 26, 27, 28, 30, 30, 31, 31, 31}},
      {RelativeBiasOptions(1).bidirectional(false),
       {31, 31, 31, 31, 30, 26, 26, 23, 17, 16, 16, 15, 9, 8, 7, 3, 1, 0,
        0,  0,  0,  0,  0,  0,  0,  0,  0,  0,  0,  0,  0, 0, 0, 0, 0}},
      {RelativeBiasOptions(1).num_buckets(8).max_distance(20),
       {3, 3, 3, 3, 3, 3, 3, 3, 3, 3, 3, 3, 3, 3, 3, 2, 1, 0,
        5, 6, 6, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7}},
      {RelativeBiasOptions(1).num_buckets(6).max_distance(11).bidirectional(
           false),
       {5, 5, 5, 5, 5, 5, 5, 5, 5, 5, 5, 5, 5, 5, 4, 3, 1, 0,
        0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0}},
  }));
  RelativeBias bias(row.options);
  const torch::NoGradGuard no_grad;
  bias->weight.copy_(
      torch::arange(row.options.num_buckets()).unsqueeze(1).to(torch::kFloat));
  // One query in the middle of the keys.
  constexpr int64_t kQuery = 300;
  const auto all = bias->forward(1, kQuery + 501, kQuery);
  REQUIRE(all.sizes() == torch::IntArrayRef({1, 1, 1, kQuery + 501}));
  for (size_t i = 0; i < kDistances.size(); ++i) {
    CAPTURE(kDistances[i]);
    CHECK(
        all[0][0][0][kQuery + kDistances[i]].item<float>() ==
        static_cast<float>(row.buckets[i]));
  }
}

TEST_CASE("RelativeBias gives each head and query its own") {
  torch::manual_seed(41);
  RelativeBias bias(RelativeBiasOptions(3).num_buckets(8).max_distance(20));
  const auto all = bias->forward(6, 6);
  REQUIRE(all.sizes() == torch::IntArrayRef({1, 3, 6, 6}));
  // By distance alone.
  CHECK_THAT(
      all.slice(2, 0, 5).slice(3, 0, 5),
      IsEqualTo(all.slice(2, 1).slice(3, 1)));
  CHECK_THAT(bias->forward(2, 6, 4), IsEqualTo(all.slice(2, 4)));
  CHECK_THAT(
      all[0].select(1, 2).select(1, 2), IsEqualTo(bias->weight.select(0, 0)));
  all.sum().backward();
  CHECK(bias->weight.grad().sum().item<float>() == Approx(3 * 36));
  CHECK(bias->forward(0, 3).sizes() == torch::IntArrayRef({1, 3, 0, 3}));
}

TEST_CASE("RelativeBias in decoding gives what it gives in forward") {
  torch::manual_seed(42);
  RelativeBias bias(RelativeBiasOptions(2).num_buckets(6).bidirectional(false));
  bias->to(torch::kDouble);
  MultiHeadAttention attention(
      MultiHeadAttentionOptions(8, 8, 16, 2).scale(1.0));
  attention->to(torch::kDouble);
  attention->eval();
  const auto x = torch::randn({2, 7, 8}, torch::kDouble);
  const torch::NoGradGuard no_grad;
  bias->weight.normal_();
  const auto expected =
      attention->forward(x, ForwardOptions().bias(bias->forward(7, 7)));
  auto cache = attention->make_cache(2);
  const auto decode = [&](int64_t begin, int64_t end) {
    return attention->decode(
        x.slice(1, begin, end),
        cache,
        DecodeOptions().bias(bias->forward(end - begin, end, begin)));
  };
  const auto first = decode(0, 4);
  const auto second = decode(4, 5);
  CHECK_THAT(torch::cat({first, second, decode(5, 7)}, 1), IsCloseTo(expected));
  THROWS_WITH(
      attention->decode(
          x.slice(1, 0, 1), cache, DecodeOptions().bias(bias->forward(1, 7))),
      "expected a bias that broadcasts to the scores (B, H, T, S) = [2, 2, 1, "
      "8]");
  CHECK(cache.lengths()[0].item<int64_t>() == 7);
}

TEST_CASE("WindowBias goes by rows and columns") {
  torch::manual_seed(43);
  WindowBias bias(WindowBiasOptions(2, 3, 4));
  const auto all = bias->forward();
  REQUIRE(all.sizes() == torch::IntArrayRef({1, 2, 12, 12}));
  for (int64_t query = 0; query < 12; ++query) {
    for (int64_t key = 0; key < 12; ++key) {
      const auto place =
          (query / 4 - key / 4 + 2) * 7 + (query % 4 - key % 4 + 3);
      CHECK_THAT(
          all[0].select(1, query).select(1, key),
          IsEqualTo(bias->relative_position_bias_table[place]));
    }
  }
}

TEST_CASE("Relative biases refuse sizes that mean nothing") {
  THROWS_WITH(RelativeBias(0), "num_heads");
  THROWS_WITH(
      RelativeBias(RelativeBiasOptions(1).num_buckets(3)),
      "RelativeBias: expected num_buckets of at least 2, or at least 4 and even "
      "if bidirectional, but got 3");
  THROWS_WITH(
      RelativeBias(RelativeBiasOptions(1).max_distance(8)),
      "expected max_distance > 8, half the buckets of one direction, but got 8");
  THROWS_WITH(RelativeBias(2)->forward(1, -1), "T, S and first >= 0");
  THROWS_WITH(WindowBias(1, 0, 2), "height");
}

} // namespace relative_bias_test
