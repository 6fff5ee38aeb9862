#include <support/close.h>
#include <support/temporary_folder.h>
#include <support/test.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <sstream>
#include <vector>

namespace relative_attention_test {

using namespace torch_attention;
using namespace torch_attention::testing;

namespace {

using Options = RelativeAttentionOptions;

Options learned(int64_t left, int64_t right) {
  return Options(6, 9, 3).kind(RelativeKind::kLearned).left(left).right(right);
}

std::vector<Options> all_options() {
  return {
      learned(2, 3),
      learned(3, 2).last_first(true).scale(0.3).qkv_bias(false),
      learned(0, 0).out_bias(false),
      learned(20, 30).head_dim(5).num_kv_heads(1),
      Options(6, 9, 3),
      Options(6, 9, 3).order(SinusoidOrder::kHalves).query_bias(false),
      Options(8, 8, 4).num_kv_heads(2).head_dim(3).causal(true),
      Options(8, 8, 4).window(3).window_after(1),
      learned(4, 4).chunk(4),
      Options(6, 9, 3).chunk(2).chunks_before(1)};
}

RelativeAttention make(const Options& options) {
  torch::manual_seed(41);
  RelativeAttention attention(options);
  attention->to(torch::kDouble);
  attention->eval();
  return attention;
}

/// Returns the vector of distance t - s by which the query of head h is
/// multiplied.
torch::Tensor vector_of(
    RelativeAttention attention,
    int64_t h,
    int64_t distance) {
  const auto& options = attention->options;
  if (options.kind() == RelativeKind::kLearned) {
    const auto clipped =
        std::min(std::max(-distance, -options.left()), options.right());
    return attention->distance_embedding->weight
        [options.last_first() ? options.right() - clipped
                              : clipped + options.left()];
  }
  const auto size = options.d_in();
  // Python computes them in float32.
  const auto angles = distance *
      (torch::arange(0, size, 2, torch::kFloat) *
       (-std::log(10000.0) / static_cast<double>(size)))
          .exp();
  const bool halves = options.order() == SinusoidOrder::kHalves;
  const auto p = torch::stack({angles.sin(), angles.cos()}, halves ? 0 : 1)
                     .flatten()
                     .to(torch::kDouble);
  return attention->W_pos(p).view({options.num_heads(), -1})[h];
}

bool hides(const Options& options, int64_t t, int64_t s) {
  return (options.causal() && s > t) ||
      (options.window() && t - s >= *options.window()) ||
      (options.window_after() && s - t > *options.window_after()) ||
      (options.chunk() &&
       (s / *options.chunk() > t / *options.chunk() ||
        s / *options.chunk() + options.chunks_before() < t / *options.chunk()));
}

/// The definition: one product per query, key and head. `bias` is added, (B, H,
/// T, T).
torch::Tensor by_loops(
    RelativeAttention attention,
    const torch::Tensor& x,
    const torch::Tensor& bias) {
  const auto& options = attention->options;
  const auto H = options.num_heads();
  const auto T = x.size(1);
  const auto heads = [&](torch::nn::Linear layer, int64_t num_heads) {
    return layer(x).view({x.size(0), T, num_heads, -1});
  };
  const auto G = options.num_kv_heads().value_or(H);
  const auto q = heads(attention->W_query, H);
  const auto k = heads(attention->W_key, G).repeat_interleave(H / G, 2);
  const auto v = heads(attention->W_value, G).repeat_interleave(H / G, 2);
  const auto scale =
      options.scale().value_or(1 / std::sqrt(static_cast<double>(q.size(-1))));
  auto context = torch::empty_like(q);
  for (int64_t b = 0; b < x.size(0); ++b) {
    for (int64_t h = 0; h < H; ++h) {
      for (int64_t t = 0; t < T; ++t) {
        auto scores = torch::empty({T}, torch::kDouble);
        for (int64_t s = 0; s < T; ++s) {
          auto of_keys = q[b][t][h];
          auto of_distances = of_keys;
          if (attention->pos_bias_u.defined()) {
            of_keys = of_keys + attention->pos_bias_u[h];
            of_distances = of_distances + attention->pos_bias_v[h];
          }
          scores[s] = hides(options, t, s)
              ? torch::tensor(
                    -std::numeric_limits<double>::infinity(), torch::kDouble)
              : (of_keys.dot(k[b][s][h]) +
                 of_distances.dot(vector_of(attention, h, t - s))) *
                      scale +
                  bias[b][h][t][s];
        }
        const auto weights = torch::softmax(scores, 0);
        context[b][t][h] = torch::matmul(weights, v.select(0, b).select(1, h));
      }
    }
  }
  return attention->out_proj(context.flatten(2));
}

torch::Tensor no_bias(const Options& options, const torch::Tensor& x) {
  return torch::zeros(
      {x.size(0), options.num_heads(), x.size(1), x.size(1)}, torch::kDouble);
}

torch::Tensor input(const Options& options, int64_t B, int64_t T) {
  torch::manual_seed(42);
  return torch::randn({B, T, options.d_in()}, torch::kDouble);
}

std::vector<torch::Tensor> gradients_of(
    RelativeAttention attention,
    const torch::Tensor& x) {
  attention->zero_grad();
  auto output = attention->forward(x);
  (output *
   torch::linspace(-1, 2, output.numel(), output.options()).view_as(output))
      .sum()
      .backward();
  std::vector<torch::Tensor> gradients;
  for (const auto& parameter : attention->parameters()) {
    gradients.push_back(parameter.grad().clone());
  }
  return gradients;
}

} // namespace

TEST_CASE("RelativeAttention computes its formula") {
  const torch::NoGradGuard no_grad;
  const auto kernel =
      GENERATE(Kernel::kAuto, Kernel::kFused, Kernel::kReference);
  for (auto options : all_options()) {
    auto attention = make(options.kernel(kernel));
    CAPTURE(attention);
    for (const int64_t T : {1, 2, 7}) {
      const auto x = input(options, 2, T);
      const auto expected = by_loops(attention, x, no_bias(options, x));
      CHECK_THAT(attention->forward(x), IsCloseTo(expected));
      const auto [context, weights] = attention->forward_with_weights(x);
      CHECK_THAT(context, IsCloseTo(expected));
      CHECK_THAT(
          weights.sum(-1),
          IsCloseTo(torch::ones({2, options.num_heads(), T}, torch::kDouble)));
    }
  }
}

TEST_CASE("RelativeAttention of no tokens and of no sequences") {
  for (const auto& options : all_options()) {
    auto attention = make(options);
    for (const auto& sizes :
         {std::vector<int64_t>{2, 0}, std::vector<int64_t>{0, 3}}) {
      const auto x =
          torch::zeros({sizes[0], sizes[1], options.d_in()}, torch::kDouble);
      CHECK(
          attention->forward(x).sizes() ==
          torch::IntArrayRef({sizes[0], sizes[1], options.d_out()}));
    }
  }
}

TEST_CASE("RelativeAttention adds a bias, and hides what a call says") {
  const torch::NoGradGuard no_grad;
  const auto kernel = GENERATE(Kernel::kAuto, Kernel::kReference);
  for (auto options : {learned(2, 3), Options(6, 9, 3)}) {
    auto attention = make(options.kernel(kernel));
    CAPTURE(attention);
    const auto x = input(options, 2, 6);
    const auto bias = torch::randn({2, 3, 6, 6}, torch::kDouble);
    CHECK_THAT(
        attention->forward(x, ForwardOptions().bias(bias)),
        IsCloseTo(by_loops(attention, x, bias)));
    const auto mask = torch::rand({6, 6}) > 0.6;
    mask.diagonal().fill_(false);
    const auto infinite =
        no_bias(options, x)
            .masked_fill(mask, -std::numeric_limits<double>::infinity());
    CHECK_THAT(
        attention->forward(x, ForwardOptions().mask(mask).bias(bias)),
        IsCloseTo(by_loops(attention, x, bias + infinite)));
    // Padding at the end changes nothing, even if it is NaN.
    const auto padding = torch::full({2, 3, options.d_in()}, NAN, x.options());
    const auto padded = torch::cat({x, padding}, 1);
    const auto lengths = torch::full({2}, 6, torch::kLong);
    const auto expected = attention->forward(x);
    CHECK_THAT(
        attention->forward(padded, ForwardOptions().key_lengths(lengths))
            .slice(1, 0, 6),
        IsCloseTo(expected));
    // Padding before the tokens: distances stay.
    const auto hidden = torch::zeros({2, 9}, torch::kBool);
    hidden.slice(1, 0, 3).fill_(true);
    CHECK_THAT(
        attention
            ->forward(
                torch::cat({torch::randn_like(padding), x}, 1),
                ForwardOptions().key_padding_mask(hidden))
            .slice(1, 3),
        IsCloseTo(expected));
  }
}

TEST_CASE("RelativeAttention has the gradients of its formula") {
  const auto kernel = GENERATE(Kernel::kAuto, Kernel::kReference);
  for (auto options : all_options()) {
    auto attention = make(options.kernel(kernel));
    CAPTURE(attention);
    auto x = input(options, 2, 5).requires_grad_();
    const auto ours = gradients_of(attention, x);
    const auto of_x = x.grad().clone();
    attention->zero_grad();
    auto output = by_loops(attention, x.detach(), no_bias(options, x));
    (output *
     torch::linspace(-1, 2, output.numel(), output.options()).view_as(output))
        .sum()
        .backward();
    const auto named = attention->named_parameters();
    REQUIRE(ours.size() == named.size());
    for (size_t i = 0; i < ours.size(); ++i) {
      CAPTURE(named[i].key());
      CHECK_THAT(ours[i], IsCloseTo(named[i].value().grad(), {1e-6, 1e-8}));
      // Vectors that add the same to all scores change no weight.
      const bool is_shared = named[i].key() == "W_key.bias" ||
          (options.kind() == RelativeKind::kLearned && options.left() == 0 &&
           named[i].key() == "distance_embedding.weight");
      CHECK((is_shared || ours[i].abs().sum().item<double>() > 0));
    }
    // By differences, in one direction.
    const torch::NoGradGuard no_grad;
    const auto direction = torch::randn_like(x);
    const auto loss = [&](double step) {
      const auto y = attention->forward(x + step * direction);
      return (y * torch::linspace(-1, 2, y.numel(), y.options()).view_as(y))
          .sum()
          .item<double>();
    };
    const auto slope = (loss(1e-5) - loss(-1e-5)) / 2e-5;
    CHECK(
        slope == Approx((of_x * direction).sum().item<double>()).epsilon(1e-6));
  }
}

TEST_CASE("RelativeAttention in half precision, and long sequences") {
  const torch::NoGradGuard no_grad;
  for (const auto& options :
       {learned(64, 8), Options(64, 64, 4), Options(64, 64, 4).chunk(50)}) {
    torch::manual_seed(43);
    RelativeAttention attention(options);
    attention->eval();
    const auto x = torch::randn({2, 131, options.d_in()});
    RelativeAttention exact(
        std::dynamic_pointer_cast<RelativeAttentionImpl>(attention->clone()));
    exact->to(torch::kDouble);
    const auto expected = exact->forward(x.to(torch::kDouble));
    CHECK_THAT(
        attention->forward(x),
        IsCloseTo(expected.to(torch::kFloat), {1e-4, 1e-5}));
    for (const auto dtype : {torch::kBFloat16, torch::kHalf}) {
      attention->to(dtype);
      const auto output = attention->forward(x.to(dtype));
      CHECK(output.scalar_type() == dtype);
      CHECK_THAT(
          output.to(torch::kFloat),
          IsCloseTo(expected.to(torch::kFloat), {0.05, 0.02}));
      attention->to(torch::kFloat);
    }
  }
}

TEST_CASE("RelativeAttention drops weights in training alone") {
  auto attention = make(learned(2, 2).dropout(0.5));
  const auto x = input(attention->options, 2, 6);
  const auto expected = attention->forward(x);
  attention->train();
  CHECK_FALSE(torch::allclose(attention->forward(x), expected));
  attention->eval();
  CHECK_THAT(attention->forward(x), IsCloseTo(expected));
}

TEST_CASE("RelativeAttention is saved, loaded, copied and printed") {
  const TemporaryFolder folder;
  for (const auto& options : all_options()) {
    const torch::NoGradGuard no_grad;
    auto attention = make(options);
    const auto x = input(options, 1, 4);
    const auto expected = attention->forward(x);
    const auto path = folder.path() + "/a.safetensors";
    save_weights(*attention, path);
    torch::manual_seed(44);
    RelativeAttention other(options);
    other->to(torch::kDouble);
    load_weights(*other, path);
    CHECK_THAT(other->forward(x), IsCloseTo(expected));
    const auto copy =
        std::dynamic_pointer_cast<RelativeAttentionImpl>(attention->clone());
    CHECK_THAT(copy->forward(x), IsCloseTo(expected));
    for (auto& parameter : attention->parameters()) {
      parameter.zero_();
    }
    CHECK_THAT(copy->forward(x), IsCloseTo(expected));
    attention->reset_parameters();
    CHECK(attention->W_query->weight.abs().sum().item<double>() > 0);
  }
  std::ostringstream text;
  text << RelativeAttention(learned(3, 2).last_first(true).scale(0.5)) << "\n"
       << RelativeAttention(
              Options(6, 9, 3).num_kv_heads(1).out_bias(false).key_bias(false));
  CHECK_THAT(
      text.str(),
      ContainsText(
          "torch_attention::RelativeAttention(d_in=6, d_out=9, num_heads=3, "
          "kind=learned, left=3, right=2, last_first=true, scale=0.5, "
          "dropout=0, qkv_bias=true, causal=false, kernel=auto)"));
  CHECK_THAT(
      text.str(),
      ContainsText(
          "RelativeAttention(d_in=6, d_out=9, num_heads=3, num_kv_heads=1, "
          "kind=sinusoids, order=interleaved, key_bias=false, out_bias=false, "
          "dropout=0, qkv_bias=true, causal=false, kernel=auto)"));
}

TEST_CASE("RelativeAttention refuses what it does not compute") {
  THROWS_WITH(RelativeAttention(0, 4, 2), "expected d_in > 0");
  THROWS_WITH(RelativeAttention(4, 5, 2), "expected d_out divisible");
  THROWS_WITH(RelativeAttention(5, 4, 2), "expected an even d_in");
  THROWS_WITH(
      RelativeAttention(Options(4, 4, 2).num_kv_heads(3)),
      "divisible by num_kv_heads");
  THROWS_WITH(
      RelativeAttention(learned(-1, 2)), "expected left and right in [0, ");
  THROWS_WITH(
      RelativeAttention(Options(4, 4, 2).softcap(3.0)), "expected no softcap");
  THROWS_WITH(
      RelativeAttention(Options(4, 4, 2).dropout(2)), "expected dropout");
  THROWS_WITH(
      RelativeAttention(Options(4, 4, 2).chunks_before(1)),
      "expected chunks_before >= 0, and 0 without chunk");
  auto attention = make(learned(2, 2));
  const auto x = input(attention->options, 2, 4);
  THROWS_WITH(attention->forward(x[0]), "RelativeAttention: expected");
  THROWS_WITH(
      attention->forward(x.slice(2, 0, 5)), "RelativeAttention: expected");
  THROWS_WITH(
      attention->forward(x.to(torch::kFloat)), "RelativeAttention: expected");
  THROWS_WITH(
      attention->forward(
          x, ForwardOptions().mask(torch::zeros({3, 4}, torch::kBool))),
      "RelativeAttention: expected a mask that broadcasts");
  const auto refuses = [&](const ForwardOptions& call, const char* what) {
    THROWS_WITH(
        attention->forward(x, call),
        std::string("whose tokens are at positions 0 to T - 1, but got ") +
            what);
  };
  refuses(ForwardOptions().cu_seqlens(torch::tensor({0, 4})), "cu_seqlens");
  refuses(ForwardOptions().positions(torch::arange(4)), "positions");
  refuses(ForwardOptions().rotary_cos(torch::ones({4, 1})), "rotary_cos");
  refuses(
      ForwardOptions().visible_blocks(torch::zeros({2, 4}, torch::kLong)),
      "visible_blocks");
}

} // namespace relative_attention_test
