// Attention with relative positions in rows and columns.

#include <support/close.h>
#include <support/test.h>

#include <torch_attention/torch_attention.h>

#include <ATen/ops/upsample_linear1d.h>

#include <cmath>
#include <sstream>

namespace relative_image_test {

using namespace torch_attention;
using namespace torch_attention::testing;

namespace {

using Options = RelativeAttentionOptions;

Options of_image(int64_t height, int64_t width) {
  return Options(6, 6, 2)
      .kind(RelativeKind::kRowsAndColumns)
      .height(height)
      .width(width);
}

RelativeAttention make(const Options& options) {
  torch::manual_seed(51);
  RelativeAttention attention(options);
  attention->to(torch::kDouble);
  attention->eval();
  const torch::NoGradGuard no_grad;
  attention->rel_pos_h.normal_();
  attention->rel_pos_w.normal_();
  return attention;
}

/// The scores of all pairs of tokens (B, H, T, T), a pair at a time, with
/// tables for images of the options' size.
torch::Tensor scores_by_loops(
    const RelativeAttention& attention,
    const torch::Tensor& x,
    const torch::Tensor& rows,
    const torch::Tensor& columns) {
  const auto& options = attention->options;
  const auto heads = [&](torch::nn::Linear layer) {
    return layer(x).view({x.size(0), x.size(1), options.num_heads(), -1});
  };
  const auto q = heads(attention->W_query);
  const auto k = heads(attention->W_key);
  const auto width = options.width();
  auto scores = torch::empty(
      {x.size(0), options.num_heads(), x.size(1), x.size(1)}, torch::kDouble);
  for (int64_t b = 0; b < x.size(0); ++b) {
    for (int64_t h = 0; h < options.num_heads(); ++h) {
      for (int64_t t = 0; t < x.size(1); ++t) {
        for (int64_t s = 0; s < x.size(1); ++s) {
          const auto row = t / width - s / width + options.height() - 1;
          const auto column = t % width - s % width + width - 1;
          const auto query = q[b][t][h];
          scores[b][h][t][s] = query.dot(k[b][s][h]) *
                  options.scale().value_or(1 / std::sqrt(query.size(0))) +
              query.dot(rows[row]) + query.dot(columns[column]);
        }
      }
    }
  }
  return scores;
}

torch::Tensor resized(const torch::Tensor& table, int64_t side) {
  return torch::upsample_linear1d(
             table.t().unsqueeze(0), {2 * side - 1}, /*align_corners=*/false)
      .squeeze(0)
      .t();
}

} // namespace

TEST_CASE("Scores add products with distances in rows and columns") {
  const torch::NoGradGuard no_grad;
  const auto kernel =
      GENERATE(Kernel::kAuto, Kernel::kFused, Kernel::kReference);
  for (auto options :
       {of_image(3, 4),
        of_image(1, 5).qkv_bias(false),
        of_image(4, 1).scale(0.3),
        of_image(2, 3).table_height(4).table_width(2)}) {
    auto attention = make(options.kernel(kernel));
    CAPTURE(attention);
    const auto T = options.height() * options.width();
    const auto x = torch::randn({2, T, 6}, torch::kDouble);
    const auto scores = scores_by_loops(
        attention,
        x,
        resized(attention->rel_pos_h, options.height()),
        resized(attention->rel_pos_w, options.width()));
    const auto values =
        attention->W_value(x).view({2, T, 2, -1}).transpose(1, 2);
    const auto bias = torch::randn({2, 2, T, T}, torch::kDouble);
    const auto expected = [&](const torch::Tensor& added) {
      const auto weights = torch::softmax(scores + added, -1);
      return attention->out_proj(
          torch::matmul(weights, values).transpose(1, 2).flatten(2));
    };
    CHECK_THAT(
        attention->forward(x), IsCloseTo(expected(torch::zeros_like(bias))));
    CHECK_THAT(
        attention->forward(x, ForwardOptions().bias(bias)),
        IsCloseTo(expected(bias)));
    const auto [context, weights] = attention->forward_with_weights(x);
    CHECK_THAT(weights, IsCloseTo(torch::softmax(scores, -1)));
  }
}

TEST_CASE("Vectors of rows and columns have gradients") {
  auto attention = make(of_image(2, 3).table_height(3));
  const auto x = torch::randn({1, 6, 6}, torch::kDouble);
  const auto loss = [&] { return attention->forward(x).sin().sum(); };
  loss().backward();
  for (const auto& table : {attention->rel_pos_h, attention->rel_pos_w}) {
    const auto slope = table.grad()[1][2].item<double>();
    constexpr double kStep = 1e-6;
    const torch::NoGradGuard no_grad;
    table[1][2].add_(kStep);
    const auto above = loss().item<double>();
    table[1][2].sub_(2 * kStep);
    const auto below = loss().item<double>();
    table[1][2].add_(kStep);
    CHECK(std::abs((above - below) / (2 * kStep) - slope) < 1e-6);
  }
}

TEST_CASE("Attention to images refuses other numbers of tokens") {
  auto attention = make(of_image(3, 4));
  THROWS_WITH(
      attention->forward(torch::zeros({2, 11, 6}, torch::kDouble)),
      "RelativeAttention: expected the tokens of images of 3 x 4, but got x of "
      "[2, 11, 6]");
  THROWS_WITH(
      RelativeAttention(of_image(0, 4)),
      "expected height, width, table_height and table_width in [1, 1048576], "
      "but got 0");
  std::ostringstream text;
  text << make(of_image(2, 3).table_height(4));
  CHECK_THAT(
      text.str(),
      ContainsText("kind=rows and columns, height=2, width=3, table_height=4, "
                   "table_width=3"));
}

} // namespace relative_image_test
