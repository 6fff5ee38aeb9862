// Attention with products of content and position.

#include <support/close.h>
#include <support/temporary_folder.h>
#include <support/test.h>

#include <torch_attention/torch_attention.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <sstream>
#include <vector>

namespace disentangled_attention_test {

using namespace torch_attention;
using namespace torch_attention::testing;

namespace {

using Options = RelativeAttentionOptions;

/// The buckets of the distances from 0 on, with 8 buckets up to 20, as the
/// class of DeBERTa v2 in transformers 5.24 computes them. The distances before
/// have them with the other sign.
constexpr std::array<int64_t, 26> kBuckets{0, 1, 2, 3, 4, 5, 5, 6, 6,
                                           6, 6, 6, 7, 7, 7, 7, 7, 7,
                                           7, 7, 8, 8, 8, 8, 8, 8};

Options disentangled(int64_t max_distance) {
  return Options(6, 8, 2)
      .kind(RelativeKind::kDisentangled)
      .max_distance(max_distance);
}

std::vector<Options> all_options() {
  return {
      disentangled(3),
      disentangled(30).share_projections(false),
      disentangled(20).buckets(8),
      disentangled(20).buckets(8).share_projections(false).key_bias(false),
      disentangled(4).content_to_position(false),
      disentangled(20).buckets(8).position_to_content(false).qkv_bias(false),
      disentangled(2).head_dim(5).scale(0.3).out_bias(false),
      disentangled(1).causal(true),
  };
}

RelativeAttention make(const Options& options) {
  torch::manual_seed(61);
  RelativeAttention attention(options);
  attention->to(torch::kDouble);
  attention->eval();
  return attention;
}

int64_t row_of(const Options& options, int64_t distance) {
  const auto length = std::abs(distance);
  const auto sign = distance < 0 ? -1 : 1;
  const auto span = options.buckets().value_or(options.max_distance());
  const auto bucket = options.buckets()
      ? sign * kBuckets.at(static_cast<size_t>(length))
      : distance;
  return std::min(std::max<int64_t>(bucket + span, 0), 2 * span - 1);
}

/// The definition: one sum of products per query, key and head. `bias` is
/// added, (B, H, T, T).
torch::Tensor by_loops(
    RelativeAttention attention,
    const torch::Tensor& x,
    const torch::Tensor& bias) {
  const auto& options = attention->options;
  const auto H = options.num_heads();
  const auto T = x.size(1);
  const auto heads = [&](torch::nn::Linear layer, const torch::Tensor& tokens) {
    return layer(tokens).unflatten(-1, {H, -1});
  };
  const auto& P = attention->relative_embeddings;
  const bool shares = options.share_projections();
  torch::Tensor keys_of_p;
  torch::Tensor queries_of_p;
  if (options.content_to_position()) {
    keys_of_p = heads(shares ? attention->W_key : attention->W_pos_key, P);
  }
  if (options.position_to_content()) {
    queries_of_p =
        heads(shares ? attention->W_query : attention->W_pos_query, P);
  }
  const auto q = heads(attention->W_query, x);
  const auto k = heads(attention->W_key, x);
  const auto v = heads(attention->W_value, x);
  const auto products = 1 + static_cast<int>(keys_of_p.defined()) +
      static_cast<int>(queries_of_p.defined());
  const auto scale = options.scale().value_or(
      1 / std::sqrt(static_cast<double>(q.size(-1) * products)));
  std::vector<torch::Tensor> context;
  for (int64_t b = 0; b < x.size(0); ++b) {
    for (int64_t t = 0; t < T; ++t) {
      for (int64_t h = 0; h < H; ++h) {
        std::vector<torch::Tensor> scores;
        for (int64_t s = 0; s < (options.causal() ? t + 1 : T); ++s) {
          const auto row = row_of(options, t - s);
          auto score = q[b][t][h].dot(k[b][s][h]);
          if (keys_of_p.defined()) {
            score = score + q[b][t][h].dot(keys_of_p[row][h]);
          }
          if (queries_of_p.defined()) {
            score = score + k[b][s][h].dot(queries_of_p[row][h]);
          }
          scores.push_back(score * scale + bias[b][h][t][s]);
        }
        const auto weights = torch::softmax(torch::stack(scores), 0);
        const auto values =
            v.select(0, b).select(1, h).narrow(0, 0, weights.size(0));
        context.push_back(torch::matmul(weights, values));
      }
    }
  }
  return attention->out_proj(torch::stack(context).view({x.size(0), T, -1}));
}

torch::Tensor no_bias(const torch::Tensor& x) {
  return torch::zeros({x.size(0), 2, x.size(1), x.size(1)}, torch::kDouble);
}

torch::Tensor input(int64_t B, int64_t T) {
  torch::manual_seed(62);
  return torch::randn({B, T, 6}, torch::kDouble);
}

} // namespace

TEST_CASE("Scores add products of content and position") {
  const torch::NoGradGuard no_grad;
  const auto kernel =
      GENERATE(Kernel::kAuto, Kernel::kFused, Kernel::kReference);
  for (auto options : all_options()) {
    auto attention = make(options.kernel(kernel));
    CAPTURE(attention);
    for (const int64_t T : {1, 2, 7, 26}) {
      const auto x = input(T > 20 ? 1 : 2, T);
      const auto expected = by_loops(attention, x, no_bias(x));
      CHECK_THAT(attention->forward(x), IsCloseTo(expected));
      const auto [context, weights] = attention->forward_with_weights(x);
      CHECK_THAT(context, IsCloseTo(expected));
    }
    const auto x = input(2, 6);
    const auto bias = torch::randn({2, 2, 6, 6}, torch::kDouble);
    CHECK_THAT(
        attention->forward(x, ForwardOptions().bias(bias)),
        IsCloseTo(by_loops(attention, x, bias)));
    auto padding = torch::zeros({2, 6}, torch::kBool);
    padding[1].slice(0, 4).fill_(true);
    const auto padded =
        attention->forward(x, ForwardOptions().key_padding_mask(padding));
    const auto alone = x.slice(0, 1).slice(1, 0, 4);
    CHECK_THAT(
        padded.slice(0, 1).slice(1, 0, 4),
        IsCloseTo(by_loops(attention, alone, no_bias(alone))));
  }
}

TEST_CASE("Products of content and position have gradients") {
  const auto kernel = GENERATE(Kernel::kAuto, Kernel::kReference);
  for (auto options : all_options()) {
    auto attention = make(options.kernel(kernel));
    CAPTURE(attention);
    const auto x = input(2, 7).requires_grad_();
    auto inputs = attention->parameters();
    inputs.push_back(x);
    const auto gradients = [&](const torch::Tensor& output) {
      return torch::autograd::grad({output.sin().sum()}, inputs);
    };
    const auto ours = gradients(attention->forward(x));
    const auto expected = gradients(by_loops(attention, x, no_bias(x)));
    for (size_t i = 0; i < inputs.size(); ++i) {
      CAPTURE(i);
      CHECK_THAT(ours[i], IsCloseTo(expected[i]));
    }
  }
}

TEST_CASE("Disentangled attention of no tokens and of no sequences") {
  for (const auto& options : all_options()) {
    auto attention = make(options);
    for (const auto& sizes : {std::vector<int64_t>{2, 0}, {0, 3}}) {
      const auto x = torch::zeros({sizes[0], sizes[1], 6}, torch::kDouble);
      CHECK(
          attention->forward(x).sizes() ==
          torch::IntArrayRef({sizes[0], sizes[1], 8}));
    }
  }
}

TEST_CASE("Disentangled attention is saved with its embeddings") {
  const torch::NoGradGuard no_grad;
  const TemporaryFolder folder;
  for (const auto& options : all_options()) {
    auto attention = make(options);
    const auto path = folder.file("attention.safetensors");
    save_weights(*attention, path);
    RelativeAttention loaded(options);
    loaded->to(torch::kDouble);
    load_weights(*loaded, path);
    const auto x = input(2, 5);
    CHECK(torch::equal(loaded->forward(x), attention->forward(x)));
  }
}

TEST_CASE("Disentangled attention says what it expects") {
  THROWS_WITH(
      RelativeAttention(disentangled(0)),
      "RelativeAttention: expected max_distance in [1, 1048576] and buckets in "
      "[2, 1048576], but got 0 and 2");
  THROWS_WITH(
      RelativeAttention(disentangled(5).buckets(8)),
      "RelativeAttention: expected max_distance above 5 with buckets = 8, but "
      "got 5");
  THROWS_WITH(
      RelativeAttention(
          disentangled(5).content_to_position(false).position_to_content(
              false)),
      "expected content_to_position or position_to_content");
  THROWS_WITH(
      RelativeAttention(disentangled(5).num_kv_heads(1)),
      "expected as many key heads as query heads");
  std::ostringstream text;
  text << make(
      disentangled(20).buckets(8).content_to_position(false).share_projections(
          false));
  CHECK_THAT(
      text.str(),
      ContainsText("kind=disentangled, max_distance=20, buckets=8, "
                   "content_to_position=false, share_projections=false"));
}

} // namespace disentangled_attention_test
