// Modules with norms and gates of the context, and with scaled queries and
// values, against LibTorch's operators in float64.

#include <support/close.h>
#include <support/decode.h>
#include <support/test.h>

#include <cmath>
#include <sstream>
#include <vector>

namespace gates_and_scales_test {

using namespace torch_attention;
using namespace torch_attention::testing;

namespace {

/// The angles of rotary embeddings have the precision of float32.
const Tolerance kAngles{1e-5, 1e-5};

using Options = MultiHeadAttentionOptions;

/// Sizes of a module and its input, drawn by a seed.
struct Sizes {
  int64_t B;
  int64_t T;
  int64_t d_in;
  int64_t kv_heads;
  int64_t heads;
  int64_t head_dim;
  int64_t value_dim;
};

Sizes draw_sizes(int64_t seed) {
  torch::manual_seed(static_cast<uint64_t>(seed));
  const auto draw = [](int64_t low, int64_t high) {
    return torch::randint(low, high + 1, {1}).item<int64_t>();
  };
  Sizes sizes{};
  sizes.B = draw(1, 3);
  sizes.T = draw(1, 12);
  sizes.d_in = draw(1, 9);
  sizes.kv_heads = draw(1, 3);
  sizes.heads = sizes.kv_heads * draw(1, 3);
  sizes.head_dim = 2 * draw(1, 5);
  sizes.value_dim = sizes.head_dim + draw(0, 3);
  return sizes;
}

Options base(const Sizes& sizes) {
  return Options(sizes.d_in, 7, 20, sizes.heads)
      .num_kv_heads(sizes.kv_heads)
      .head_dim(sizes.head_dim)
      .value_dim(sizes.value_dim)
      .register_mask(false);
}

/// A module with parameters that are nowhere zero or one.
MultiHeadAttention make(const Options& options) {
  MultiHeadAttention attention(options);
  attention->to(torch::kDouble);
  attention->eval();
  const torch::NoGradGuard no_grad;
  for (auto& parameter : attention->parameters()) {
    parameter.add_(torch::rand_like(parameter) - 0.4);
  }
  return attention;
}

torch::Tensor draw_input(const Sizes& sizes) {
  return torch::randn({sizes.B, sizes.T, sizes.d_in}, torch::kDouble)
      .requires_grad_();
}

/// Rotates the pairs (i, i + D / 2) of x (B, H, T, D).
torch::Tensor rotated(const torch::Tensor& x, int64_t dim, bool reversed) {
  const auto pairs = dim / 2;
  const auto steps = torch::pow(
      10000.0,
      -torch::arange(pairs, torch::kDouble) / static_cast<double>(pairs));
  const auto angles = torch::arange(x.size(2), torch::kDouble).unsqueeze(-1) *
      steps * (reversed ? -1 : 1);
  const auto a = x.slice(-1, 0, pairs);
  const auto b = x.slice(-1, pairs, dim);
  return torch::cat(
      {a * angles.cos() - b * angles.sin(),
       b * angles.cos() + a * angles.sin(),
       x.slice(-1, dim)},
      -1);
}

/// Applies the norm of the options to rows (..., n).
torch::Tensor normalised(const torch::Tensor& rows, const HeadNorm& norm) {
  const auto& options = norm->options;
  const auto centred = options.kind() == HeadNormKind::kLayer
      ? rows - rows.mean(-1, /*keepdim=*/true)
      : rows;
  auto result = centred /
      (centred.square().mean(-1, /*keepdim=*/true) + options.eps()).sqrt();
  if (norm->weight.defined()) {
    result = result * norm->weight;
  }
  return norm->bias.defined() ? result + norm->bias : result;
}

/// (B, T, H * E) after the norm of the options.
torch::Tensor normalised_context(
    const MultiHeadAttention& attention,
    const torch::Tensor& context) {
  const auto& norm = attention->out_norm;
  if (norm.is_empty()) {
    return context;
  }
  if (norm->options.scope() == HeadNormScope::kAllHeads) {
    return normalised(context, norm);
  }
  const auto heads =
      context.unflatten(-1, {attention->options.num_heads(), -1});
  return normalised(heads, norm).flatten(2);
}

/// The module by operators, with attention head by head.
torch::Tensor by_operators(
    MultiHeadAttention attention,
    const torch::Tensor& x) {
  const auto& options = attention->options;
  const auto H = options.num_heads();
  const auto G = options.num_kv_heads().value();
  const auto D = options.head_dim().value();
  const auto split = [](const torch::Tensor& y, int64_t heads) {
    return y.unflatten(-1, {heads, -1}).transpose(1, 2);
  };
  auto query = split(attention->W_query(x), H);
  auto key = split(attention->W_key(x), G);
  auto value = split(attention->W_value(x), G) * options.value_scale();
  if (options.rotary()) {
    const bool reversed = options.rotary()->reversed();
    query = rotated(query, D, reversed);
    key = rotated(key, D, reversed);
    value = options.rotate_values() ? rotated(value, D, false) : value;
  }
  if (options.query_scale()) {
    query = query * torch::softplus(attention->query_scale) / std::log(2.0);
  }
  const auto T = x.size(1);
  const auto future = torch::ones({T, T}, torch::kBool).triu(/*diagonal=*/1);
  std::vector<torch::Tensor> contexts;
  for (int64_t h = 0; h < H; ++h) {
    const auto g = h / (H / G);
    const auto scores =
        torch::matmul(query.select(1, h), key.select(1, g).transpose(1, 2)) /
        std::sqrt(static_cast<double>(D));
    const auto weights =
        torch::softmax(scores.masked_fill(future, -INFINITY), -1);
    contexts.push_back(torch::matmul(weights, value.select(1, g)));
  }
  auto context = normalised_context(attention, torch::cat(contexts, -1));
  if (options.output_gate()) {
    const auto projected = attention->W_gate(x);
    const auto gate =
        options.output_gate()->function() == GateFunction::kSigmoid
        ? 1 / (1 + torch::exp(-projected))
        : torch::log(1 + torch::exp(projected));
    context = (context.unflatten(-1, {H, -1}) * gate.unflatten(-1, {H, -1}))
                  .flatten(2);
  }
  return attention->out_proj(context);
}

/// Options that this file tests, for sizes that a seed draws.
std::vector<Options> variants(const Sizes& sizes) {
  const auto rms = HeadNormOptions(HeadNormKind::kRms).eps(1e-3);
  const auto layer = HeadNormOptions(HeadNormKind::kLayer).eps(1e-3);
  const auto with_norm = [&](HeadNormOptions norm) {
    return base(sizes).out_norm(norm);
  };
  const auto with_gate = [&](OutputGateOptions gate) {
    return base(sizes).output_gate(gate);
  };
  auto all_rms = rms;
  auto all_layer = layer;
  auto plain = rms;
  auto of_head_softplus = OutputGateOptions(GateScope::kHead);
  return {
      with_norm(all_rms.scope(HeadNormScope::kAllHeads)),
      with_norm(all_layer.scope(HeadNormScope::kAllHeads).bias(true)),
      with_norm(layer),
      with_norm(plain.weight(false)).output_gate(OutputGateOptions()),
      with_gate(OutputGateOptions()).qkv_bias(true),
      with_gate(OutputGateOptions().bias(false)).qkv_bias(true),
      with_gate(OutputGateOptions(GateScope::kHead)),
      with_gate(of_head_softplus.function(GateFunction::kSoftplus).bias(true)),
      with_gate(OutputGateOptions().function(GateFunction::kSoftplus)),
      base(sizes).value_scale(0.707).qkv_bias(true),
      base(sizes).query_scale(true),
      base(sizes).rotary(RotaryOptions().reversed(true)),
      base(sizes).rotary(RotaryOptions()).rotate_values(true),
      with_norm(all_rms)
          .output_gate(OutputGateOptions(GateScope::kHead))
          .rotary(RotaryOptions())
          .rotate_values(true)
          .query_scale(true)
          .value_scale(-0.3),
  };
}

} // namespace

TEST_CASE("Norms, gates and scales are those of LibTorch's operators") {
  const auto kernel = GENERATE(Kernel::kAuto, Kernel::kReference);
  const int64_t seed = GENERATE(range(1, 9));
  const auto sizes = draw_sizes(seed);
  for (auto options : variants(sizes)) {
    auto attention = make(options.kernel(kernel));
    std::ostringstream text;
    text << attention;
    CAPTURE(seed, text.str());
    const auto x = draw_input(sizes);
    const auto expected = by_operators(attention, x);
    const auto output = attention(x);
    CHECK_THAT(output.detach(), IsCloseTo(expected.detach(), kAngles));
    CHECK_THAT(
        std::get<0>(attention->forward_with_weights(x)).detach(),
        IsCloseTo(expected.detach(), kAngles));
    auto wanted = attention->parameters();
    wanted.push_back(x);
    const auto direction = torch::randn_like(expected);
    const auto gradients = [&](const torch::Tensor& of) {
      return torch::autograd::grad(
          {(of * direction).sum()},
          wanted,
          {},
          /*retain_graph=*/false,
          /*create_graph=*/false,
          /*allow_unused=*/true);
    };
    const auto theirs = gradients(expected);
    const auto ours = gradients(output);
    for (size_t i = 0; i < ours.size(); ++i) {
      REQUIRE(ours[i].defined() == theirs[i].defined());
      if (ours[i].defined()) {
        CHECK_THAT(ours[i], IsCloseTo(theirs[i], kAngles));
      }
    }
  }
}

TEST_CASE("Norms, gates and scales are decoded") {
  const int64_t seed = GENERATE(range(11, 15));
  const auto sizes = draw_sizes(seed);
  for (const auto& options : variants(sizes)) {
    auto attention = make(options);
    const auto x = draw_input(sizes).detach();
    const auto expected = attention(x).detach();
    auto cache = attention->make_cache(sizes.B);
    CHECK_THAT(
        decode_in_chunks(attention, cache, x, {2, 1, 3, 1}),
        IsCloseTo(expected));
  }
}

TEST_CASE("A copy of a module has its norms, gates and scales") {
  const auto sizes = draw_sizes(21);
  for (const auto& options : variants(sizes)) {
    auto attention = make(options);
    const auto x = draw_input(sizes).detach();
    const auto copy =
        std::dynamic_pointer_cast<MultiHeadAttentionImpl>(attention->clone());
    CHECK_THAT(copy->forward(x).detach(), IsEqualTo(attention(x).detach()));
    copy->reset_parameters();
    if (copy->query_scale.defined()) {
      CHECK(copy->query_scale.eq(0).all().item<bool>());
    }
  }
}

TEST_CASE("A softplus gate of half precision is computed in float32") {
  torch::manual_seed(31);
  MultiHeadAttention attention(
      Options(8, 8, 16, 2)
          .out_proj(false)
          .output_gate(OutputGateOptions().function(GateFunction::kSoftplus)));
  auto plain_options = attention->options;
  MultiHeadAttention plain(plain_options.output_gate(std::nullopt));
  attention->to(torch::kBFloat16);
  plain->to(torch::kBFloat16);
  const torch::NoGradGuard no_grad;
  for (const auto& item : plain->named_parameters()) {
    item.value().copy_(attention->named_parameters()[item.key()]);
  }
  const auto x = torch::randn({2, 5, 8}).to(torch::kBFloat16);
  const auto gate = torch::softplus(attention->W_gate(x).to(torch::kFloat))
                        .to(torch::kBFloat16);
  CHECK_THAT(attention(x), IsCloseTo(plain(x) * gate));
}

TEST_CASE("Wrong norms and scales are refused") {
  const auto plain = [] { return Options(6, 8, 10, 2); };
  THROWS_WITH(
      MultiHeadAttention(
          plain().out_norm(HeadNormOptions().after_rotary(true))),
      "MultiHeadAttention: expected an out_norm without after_rotary");
  THROWS_WITH(
      MultiHeadAttention(plain().out_norm(HeadNormOptions().eps(-1))),
      "HeadNorm: expected a finite eps >= 0, but got -1");
  THROWS_WITH(
      MultiHeadAttention(plain().value_scale(NAN)),
      "MultiHeadAttention: expected a finite value_scale, but got nan");
  THROWS_WITH(
      MultiHeadAttention(plain().rotate_values(true)),
      "MultiHeadAttention: expected rotary beside rotate_values");
  THROWS_WITH(
      MultiHeadAttention(
          plain().rotary(RotaryOptions()).value_dim(2).rotate_values(true)),
      "MultiHeadAttention: expected value_dim >= 4");
  THROWS_WITH(
      LatentAttention(
          LatentAttentionOptions(6, 8, 10, 2).query_scale(INFINITY)),
      "LatentAttention: expected a finite query_scale, but got inf");
  THROWS_WITH(
      LatentAttention(LatentAttentionOptions(6, 8, 10, 2).latent_scale(NAN)),
      "LatentAttention: expected a finite latent_scale, but got nan");
  THROWS_WITH(
      LatentAttention(LatentAttentionOptions(6, 8, 10, 2)
                          .temperature(TemperatureOptions(0))),
      "LatentAttention: expected floor_scale of the temperature > 0, but got 0");
}

TEST_CASE("Norms, gates and scales are printed") {
  std::ostringstream text;
  text << MultiHeadAttention(
      Options(6, 8, 10, 2)
          .out_norm(HeadNormOptions().scope(HeadNormScope::kAllHeads))
          .output_gate(OutputGateOptions(GateScope::kHead)
                           .function(GateFunction::kSoftplus)
                           .bias(false))
          .rotary(RotaryOptions().reversed(true))
          .rotate_values(true)
          .value_scale(0.5)
          .query_scale(true));
  for (const auto* part :
       {"output_gate=head softplus, output_gate_bias=false",
        "out_norm=rms all_heads",
        "value_scale=0.5",
        "query_scale=true",
        "rotary_reversed=true",
        "rotate_values=true"}) {
    CHECK_THAT(text.str(), ContainsText(part));
  }
}

} // namespace gates_and_scales_test
