#include <support/close.h>
#include <support/temporary_folder.h>
#include <support/test.h>

#include <cmath>
#include <limits>

namespace cross_attention_test {

using namespace torch_attention;
using namespace torch_attention::testing;

namespace {

constexpr int64_t kBatch = 2;
constexpr int64_t kQueries = 4;
constexpr int64_t kKeys = 7;
constexpr int64_t kIn = 6;
constexpr int64_t kContext = 9;
constexpr int64_t kOut = 8;

CrossAttentionOptions plain_options() {
  return CrossAttentionOptions(kIn, kContext, kOut, 2).qkv_bias(true);
}

CrossAttention make(const CrossAttentionOptions& options) {
  torch::manual_seed(21);
  CrossAttention attention(options);
  attention->to(torch::kDouble);
  attention->eval();
  return attention;
}

torch::Tensor draw(int64_t tokens, int64_t size, uint64_t seed) {
  torch::manual_seed(seed);
  return torch::randn({kBatch, tokens, size}, torch::kDouble);
}

torch::Tensor input() {
  return draw(kQueries, kIn, 22);
}

torch::Tensor encoded() {
  return draw(kKeys, kContext, 23);
}

/// The formula, head by head. `hidden` broadcasts to (B, T, S).
torch::Tensor by_formula(
    CrossAttention attention,
    const torch::Tensor& x,
    const torch::Tensor& context,
    const torch::Tensor& hidden) {
  const auto& options = attention->options;
  const auto H = options.num_heads();
  const auto group = H / options.num_kv_heads().value_or(H);
  const auto D = attention->head_dim;
  const auto E = options.value_dim().value_or(D);
  const auto queries = attention->W_query(x);
  const auto keys = attention->W_key(context);
  const auto values = attention->W_value(context);
  std::vector<torch::Tensor> heads;
  for (int64_t h = 0; h < H; ++h) {
    auto scores = torch::matmul(
        queries.narrow(-1, h * D, D),
        keys.narrow(-1, h / group * D, D).transpose(-2, -1));
    scores = scores *
        options.scale().value_or(1 / std::sqrt(static_cast<double>(D)));
    if (options.softcap()) {
      scores = torch::tanh(scores / *options.softcap()) * *options.softcap();
    }
    const auto weights = torch::softmax(
        scores.masked_fill(hidden, -std::numeric_limits<double>::infinity()),
        -1);
    heads.push_back(
        torch::matmul(weights, values.narrow(-1, h / group * E, E)));
  }
  const auto joined = torch::cat(heads, -1);
  return options.out_proj() ? attention->out_proj(joined) : joined;
}

torch::Tensor none_hidden() {
  return torch::zeros({1, 1, 1}, torch::kBool);
}

} // namespace

TEST_CASE("CrossAttention equals the formula, with its cache, and gradients") {
  const auto kernel =
      GENERATE(Kernel::kReference, Kernel::kFused, Kernel::kAuto);
  const auto options = GENERATE(
      plain_options(),
      plain_options().scale(1).softcap(3).out_bias(false),
      CrossAttentionOptions(kIn, kContext, 10, 4)
          .num_kv_heads(2)
          .head_dim(3)
          .value_dim(5)
          .value_bias(true),
      CrossAttentionOptions(kIn, kContext, 10, 2).value_dim(5).out_proj(false));
  auto attention = make(CrossAttentionOptions(options).kernel(kernel));
  CAPTURE(kernel, c10::str(attention));
  const auto x = input().requires_grad_();
  const auto context = encoded().requires_grad_();
  const auto output = attention(x, context);
  const auto expected = by_formula(attention, x, context, none_hidden());
  CHECK_THAT(output, IsCloseTo(expected));
  CHECK_THAT(
      std::get<0>(attention->forward_with_weights(x, context)),
      IsCloseTo(expected));
  auto leaves = attention->parameters();
  leaves.push_back(x);
  leaves.push_back(context);
  const auto gradients = torch::autograd::grad({output.square().sum()}, leaves);
  const auto expected_gradients =
      torch::autograd::grad({expected.square().sum()}, leaves);
  for (size_t i = 0; i < leaves.size(); ++i) {
    CAPTURE(i);
    CHECK_THAT(gradients[i], IsCloseTo(expected_gradients[i]));
  }

  const auto cache = attention->make_cache(context);
  CHECK_THAT(attention->decode(x, cache), IsCloseTo(expected.detach()));
  CHECK_THAT(
      attention->decode(x.slice(1, 2, 3), cache),
      IsCloseTo(expected.detach().slice(1, 2, 3)));
  CHECK_FALSE(attention->decode(x, cache).requires_grad());
}

TEST_CASE("CrossAttention hides padding of the context") {
  const auto kernel = GENERATE(Kernel::kReference, Kernel::kFused);
  auto attention = make(plain_options().kernel(kernel));
  const auto lengths = torch::tensor({kKeys, int64_t{3}});
  const auto hidden = torch::arange(kKeys).unsqueeze(0) >= lengths.unsqueeze(1);
  const auto x = input();
  const auto expected =
      by_formula(attention, x, encoded(), hidden.unsqueeze(1));
  const auto context =
      encoded().masked_fill(hidden.unsqueeze(-1), std::nan(""));
  CHECK_THAT(
      attention(x, context, ForwardOptions().key_padding_mask(hidden)),
      IsCloseTo(expected));
  CHECK_THAT(
      attention(x, context, ForwardOptions().key_lengths(lengths)),
      IsCloseTo(expected));
  CHECK_THAT(
      attention->decode(x, attention->make_cache(context, lengths)),
      IsCloseTo(expected));
  CHECK_THAT(
      attention->decode(
          x,
          attention->make_cache(encoded()),
          ForwardOptions().key_lengths(lengths)),
      IsCloseTo(expected));
  const auto mask = torch::rand({kQueries, kKeys}) < 0.5;
  CHECK_THAT(
      attention->decode(
          x,
          attention->make_cache(context, lengths),
          ForwardOptions().mask(mask.slice(1, 0))),
      IsCloseTo(attention(
          x, context, ForwardOptions().key_lengths(lengths).mask(mask))));
}

TEST_CASE("CrossAttention equals LibTorch's nn::MultiheadAttention") {
  torch::manual_seed(24);
  torch::nn::MultiheadAttention theirs(
      torch::nn::MultiheadAttentionOptions(kOut, 2).kdim(kContext).vdim(
          kContext));
  theirs->to(torch::kDouble);
  CrossAttention ours(
      CrossAttentionOptions(kOut, kContext, kOut, 2).qkv_bias(true));
  ours->to(torch::kDouble);
  {
    const torch::NoGradGuard no_grad;
    theirs->in_proj_bias.uniform_(-1, 1);
    ours->W_query->weight.copy_(theirs->q_proj_weight);
    ours->W_key->weight.copy_(theirs->k_proj_weight);
    ours->W_value->weight.copy_(theirs->v_proj_weight);
    const auto biases = theirs->in_proj_bias.chunk(3);
    ours->W_query->bias.copy_(biases[0]);
    ours->W_key->bias.copy_(biases[1]);
    ours->W_value->bias.copy_(biases[2]);
    ours->out_proj->weight.copy_(theirs->out_proj->weight);
    ours->out_proj->bias.copy_(theirs->out_proj->bias);
  }
  const auto x = draw(kQueries, kOut, 25);
  const auto hidden = torch::rand({kBatch, kKeys}) < 0.4;
  const auto turned = [](const torch::Tensor& y) { return y.transpose(0, 1); };
  const auto expected = std::get<0>(
      theirs(turned(x), turned(encoded()), turned(encoded()), hidden));
  CHECK_THAT(
      ours(x, encoded(), ForwardOptions().key_padding_mask(hidden)),
      IsCloseTo(turned(expected)));
}

TEST_CASE("CrossAttention loads and saves its weights") {
  const TemporaryFolder folder;
  const auto path = folder.path() + "/cross.safetensors";
  auto from = make(plain_options());
  save_weights(*from, path);
  auto to = CrossAttention(plain_options());
  to->to(torch::kDouble);
  load_weights(*to, path);
  CHECK_THAT(to(input(), encoded()), IsEqualTo(from(input(), encoded())));
}

TEST_CASE("CrossAttention is a module like others") {
  torch::manual_seed(26);
  CrossAttention attention(kIn, kContext, kOut, 2);
  CHECK(
      c10::str(attention).find(
          "torch_attention::CrossAttention(d_in=6, d_context=9, d_out=8, "
          "num_heads=2, dropout=0, qkv_bias=false, kernel=auto)") == 0);
  const auto x = input().to(torch::kFloat);
  const auto context = encoded().to(torch::kFloat);
  torch::nn::AnyModule any(attention);
  CHECK_THAT(
      any.forward(x, context), IsEqualTo(attention->forward(x, context)));
  auto copy = std::dynamic_pointer_cast<CrossAttentionImpl>(attention->clone());
  CHECK_THAT(
      copy->forward(x, context), IsEqualTo(attention->forward(x, context)));
  CHECK_FALSE(copy->W_key->weight.is_alias_of(attention->W_key->weight));
  CHECK_THAT(attention(x.slice(1, 0, 0), context), HasShape({kBatch, 0, kOut}));
  CHECK_THAT(
      attention(x, context.slice(1, 0, 0)),
      IsCloseTo(attention->out_proj->bias.expand({kBatch, kQueries, kOut})));
}

TEST_CASE("CrossAttention refuses what does not fit, by name") {
  CrossAttention attention(plain_options().dropout(0.5));
  const auto x = input().to(torch::kFloat);
  const auto context = encoded().to(torch::kFloat);
  THROWS_WITH(
      attention(context, context),
      "CrossAttention: expected input whose last dimension is d_in = 6");
  THROWS_WITH(
      attention(x, x),
      "CrossAttention: expected context whose last dimension is d_context = 9, "
      "but got shape [2, 4, 6]");
  THROWS_WITH(
      attention(x, context.slice(0, 0, 1)),
      "CrossAttention: expected a context of as many sequences as the input "
      "has, 2, but got 1");
  THROWS_WITH(
      attention(x, encoded()),
      "CrossAttention: expected context of dtype Float");
  THROWS_WITH(
      attention->forward(x, {}), "CrossAttention: the context is undefined");
  const auto cache = attention->make_cache(context);
  THROWS_WITH(
      attention->decode(x, cache),
      "CrossAttention: expected evaluation for decode");
  attention->eval();
  THROWS_WITH(
      attention->decode(x.slice(0, 0, 1), cache),
      "CrossAttention: expected input of as many sequences as the cache has, "
      "2, but got 1");
  THROWS_WITH(
      attention->make_cache(context, torch::tensor({1, 8})),
      "CrossAttention: expected lengths in [0, 7], but got 8 for sequence 1");
  THROWS_WITH(
      attention(
          x,
          context,
          ForwardOptions().key_padding_mask(
              torch::zeros({kBatch, kQueries}, torch::kBool))),
      "CrossAttention: expected a key_padding_mask of shape (B, S) = [2, 7]");
  THROWS_WITH(
      CrossAttention(kIn, 0, kOut, 2),
      "CrossAttention: expected d_context > 0, but got 0");
}

} // namespace cross_attention_test
