#include <support/close.h>
#include <support/temporary_folder.h>
#include <support/test.h>

#include <algorithm>
#include <limits>
#include <random>
#include <sstream>
#include <string>
#include <vector>

namespace longformer_attention_test {

using namespace torch_attention;
using namespace torch_attention::testing;

namespace {

using Options = LongformerAttentionOptions;

LongformerAttention make(
    const Options& options,
    torch::Dtype dtype = torch::kDouble) {
  torch::manual_seed(41);
  LongformerAttention attention(options);
  attention->to(dtype);
  attention->eval();
  return attention;
}

/// Which tokens are global and which are padding, bool (B, T).
struct Kinds {
  torch::Tensor is_global;
  torch::Tensor is_padding;

  ForwardOptions call() const {
    return ForwardOptions().global_tokens(is_global).key_padding_mask(
        is_padding);
  }
};

/// Draws tokens of each kind; some sequences have no global token.
template <typename Engine>
Kinds draw_kinds(int64_t B, int64_t T, Engine& engine) {
  Kinds kinds{
      torch::zeros({B, T}, torch::kBool), torch::zeros({B, T}, torch::kBool)};
  const bool same = engine() % 3 == 0;
  for (int64_t b = 0; b < B; ++b) {
    const auto share = same ? 0 : engine() % 4;
    const auto padded = static_cast<int64_t>(engine() % 4);
    for (int64_t t = 0; t < T; ++t) {
      const bool is_padding = t >= T - padded && t > 0;
      const bool is_global =
          same ? t == 0 : engine() % 8 < share && !is_padding;
      kinds.is_padding[b][t] = is_padding;
      kinds.is_global[b][t] = is_global;
    }
  }
  return kinds;
}

/// The definition: one softmax for each query, of whichever kind it is. Returns
/// output and weights (B, H, T, T).
std::tuple<torch::Tensor, torch::Tensor> by_loops(
    LongformerAttention attention,
    const torch::Tensor& x,
    const Kinds& kinds) {
  const auto& options = attention->options;
  const auto B = x.size(0);
  const auto T = x.size(1);
  const auto H = options.num_heads();
  const auto heads = [&](torch::nn::Linear layer) {
    return layer(x).view({B, T, H, -1});
  };
  const auto q = heads(attention->W_query);
  const auto k = heads(attention->W_key);
  const auto v = heads(attention->W_value);
  const auto global_q = heads(attention->W_query_global);
  const auto global_k = heads(attention->W_key_global);
  const auto global_v = heads(attention->W_value_global);
  const auto scale = 1 / std::sqrt(static_cast<double>(q.size(-1)));
  std::vector<torch::Tensor> contexts;
  auto all_weights = torch::zeros({B, H, T, T}, x.options());
  for (int64_t b = 0; b < B; ++b) {
    for (int64_t t = 0; t < T; ++t) {
      const bool is_global = kinds.is_global[b][t].item<bool>();
      for (int64_t h = 0; h < H; ++h) {
        if (kinds.is_padding[b][t].item<bool>()) {
          contexts.push_back(torch::zeros({q.size(-1)}, x.options()));
          continue;
        }
        auto hidden = torch::zeros({T}, torch::kBool);
        for (int64_t s = 0; s < T; ++s) {
          const bool is_near =
              std::abs(t - s) <= options.attention_window() / 2;
          const bool is_seen =
              is_global || is_near || kinds.is_global[b][s].item<bool>();
          hidden[s] = !is_seen || kinds.is_padding[b][s].item<bool>();
        }
        const auto& keys = is_global ? global_k : k;
        const auto& values = is_global ? global_v : v;
        const auto query = (is_global ? global_q : q)[b][t][h];
        const auto scores =
            torch::matmul(keys.select(0, b).select(1, h), query) * scale;
        const auto weights = torch::softmax(
            scores.masked_fill(
                hidden, -std::numeric_limits<double>::infinity()),
            0);
        all_weights[b][h][t] = weights.detach();
        contexts.push_back(
            torch::matmul(weights, values.select(0, b).select(1, h)));
      }
    }
  }
  return {
      attention->out_proj(torch::stack(contexts).view({B, T, -1})),
      all_weights};
}

std::vector<torch::Tensor> gradients_of(
    LongformerAttention attention,
    const torch::Tensor& x,
    const torch::Tensor& output) {
  auto inputs = attention->parameters();
  inputs.push_back(x);
  const auto loss =
      (output *
       torch::linspace(-1, 2, output.numel(), output.options()).view_as(output))
          .sum();
  auto gradients = torch::autograd::grad(
      {loss}, inputs, {}, c10::nullopt, false, /*allow_unused=*/true);
  // Projections that nothing uses have none.
  for (size_t i = 0; i < inputs.size(); ++i) {
    if (!gradients[i].defined()) {
      gradients[i] = torch::zeros_like(inputs[i]);
    }
  }
  return gradients;
}

} // namespace

TEST_CASE("LongformerAttention is what its loops compute") {
  std::mt19937 engine(7);
  for (int i = 0; i < 24; ++i) {
    const auto B = static_cast<int64_t>(1 + engine() % 3);
    const auto T = static_cast<int64_t>(1 + engine() % 20);
    auto attention =
        make(Options(6, 12, 1 + static_cast<int64_t>(engine() % 2) * 2)
                 .attention_window(2 * static_cast<int64_t>(1 + engine() % 5))
                 .qkv_bias(engine() % 3 != 0)
                 .out_bias(engine() % 3 != 0));
    const auto kinds = draw_kinds(B, T, engine);
    torch::manual_seed(i);
    const auto x = torch::randn(
        {B, T, 6}, torch::dtype(torch::kDouble).requires_grad(true));
    CAPTURE(i, B, T, attention->options.attention_window());
    const auto [expected, weights] = by_loops(attention, x, kinds);
    const auto gradients = gradients_of(attention, x, expected);
    for (const auto kernel : {Kernel::kFused, Kernel::kReference}) {
      CAPTURE(kernel);
      attention->options.kernel(kernel);
      const auto output = attention(x, kinds.call());
      CHECK_THAT(output, IsCloseTo(expected));
      const auto ours = gradients_of(attention, x, output);
      for (size_t j = 0; j < ours.size(); ++j) {
        CAPTURE(j);
        CHECK_THAT(ours[j], IsCloseTo(gradients[j]));
      }
    }
    attention->options.kernel(i % 2 == 0 ? Kernel::kAuto : Kernel::kFused);
    const auto [output, its_weights] =
        attention->forward_with_weights(x, kinds.call());
    CHECK_THAT(output, IsCloseTo(expected));
    CHECK_THAT(its_weights, IsCloseTo(weights));
  }
}

TEST_CASE("LongformerAttention computes long texts tile by tile") {
  torch::manual_seed(2);
  const torch::NoGradGuard no_grad;
  auto attention =
      make(Options(32, 32, 2).attention_window(128), torch::kFloat);
  const auto x = torch::randn({2, 700, 32});
  auto is_global = torch::zeros({2, 700}, torch::kBool);
  is_global.select(1, 0).fill_(true);
  for (const bool same : {true, false}) {
    CAPTURE(same);
    if (!same) {
      is_global[1].slice(0, 333, 336).fill_(true);
    }
    const auto call = ForwardOptions().global_tokens(is_global).key_lengths(
        torch::tensor({700, 512}));
    attention->options.kernel(Kernel::kFused);
    const auto output = attention(x, call);
    attention->options.kernel(Kernel::kReference);
    CHECK_THAT(output, IsCloseTo(attention(x, call), {1e-5, 1e-5}));
  }
  // Without global tokens it is a window of other modules.
  const auto none = torch::zeros({2, 700}, torch::kBool);
  attention->options.kernel(Kernel::kAuto);
  const auto output = attention(x);
  CHECK_THAT(
      attention(x, ForwardOptions().global_tokens(none)), IsEqualTo(output));
  MultiHeadAttention window(MultiHeadAttentionOptions(32, 32, 700, 2)
                                .qkv_bias(true)
                                .causal(false)
                                .register_mask(false)
                                .window(65)
                                .window_after(64));
  for (auto& parameter : window->named_parameters()) {
    parameter.value().copy_(attention->named_parameters()[parameter.key()]);
  }
  CHECK_THAT(window(x), IsCloseTo(output, {1e-5, 1e-5}));
}

TEST_CASE("LongformerAttention drops weights in training alone") {
  auto attention = make(Options(8, 8, 2).attention_window(4).dropout(0.5));
  torch::manual_seed(3);
  const auto x = torch::randn({1, 9, 8}, torch::kDouble);
  const auto call =
      ForwardOptions().global_tokens(torch::arange(9).eq(4).unsqueeze(0));
  const auto expected = attention(x, call);
  CHECK_THAT(attention(x, call), IsEqualTo(expected));
  attention->train();
  const auto output = attention(x, call);
  // The rows of the global token and of others.
  CHECK_FALSE(output[0][4].equal(expected[0][4]));
  CHECK_FALSE(output[0][0].equal(expected[0][0]));
}

TEST_CASE("LongformerAttention is seeded, printed, cloned and saved") {
  torch::manual_seed(123);
  LongformerAttention attention(Options(6, 6, 3).attention_window(4));
  torch::manual_seed(123);
  for (const auto* name :
       {"W_query",
        "W_key",
        "W_value",
        "W_query_global",
        "W_key_global",
        "W_value_global",
        "out_proj"}) {
    CAPTURE(name);
    const torch::nn::Linear layer(6, 6);
    CHECK_THAT(
        attention->named_parameters()[std::string(name) + ".weight"],
        IsEqualTo(layer->weight));
  }
  std::ostringstream text;
  text << attention;
  CHECK_THAT(
      text.str(),
      ContainsText("LongformerAttention(d_in=6, d_out=6, num_heads=3, "
                   "attention_window=4, dropout=0, qkv_bias=true"));
  const auto x = torch::randn({1, 5, 6});
  const auto call =
      ForwardOptions().global_tokens(torch::arange(5).eq(1).unsqueeze(0));
  const auto expected = attention(x, call);
  const auto clone =
      std::dynamic_pointer_cast<LongformerAttentionImpl>(attention->clone());
  attention->reset_parameters();
  CHECK_FALSE(attention(x, call).equal(expected));
  CHECK_THAT(clone->forward(x, call), IsEqualTo(expected));
  const TemporaryFolder folder;
  const auto file = folder.file("saved.safetensors");
  save_weights(*clone, file);
  load_weights(*attention, file);
  CHECK_THAT(attention(x, call), IsEqualTo(expected));
}

TEST_CASE("LongformerAttention says what is wrong") {
  const auto refuses = [](const Options& options, const char* message) {
    THROWS_WITH(LongformerAttention(options), message);
  };
  refuses(Options(0, 6, 2), "expected d_in > 0");
  refuses(Options(6, 7, 2), "expected d_out divisible by num_heads");
  refuses(Options(6, 6, 2).dropout(2), "dropout");
  for (const int64_t window : {-2, 0, 3}) {
    refuses(
        Options(6, 6, 2).attention_window(window),
        "expected an even attention_window > 0");
  }
  LongformerAttention attention(Options(6, 6, 2).attention_window(4));
  const auto x = torch::randn({2, 5, 6});
  const auto fails = [&](const ForwardOptions& call, const char* message) {
    THROWS_WITH(attention(x, call), message);
    THROWS_WITH(attention->forward_with_weights(x, call), message);
  };
  THROWS_WITH(attention(x[0]), "expected input");
  THROWS_WITH(attention(torch::randn({2, 5, 7})), "d_in");
  fails(
      ForwardOptions().global_tokens(torch::zeros({2, 4}, torch::kBool)),
      "expected bool global_tokens of shape (B, T) = [2, 5] on cpu, but got "
      "Bool of shape [2, 4]");
  fails(
      ForwardOptions().global_tokens(torch::zeros({2, 5})),
      "expected bool global_tokens");
  fails(
      ForwardOptions().key_padding_mask(torch::zeros({2, 4}, torch::kBool)),
      "expected a key_padding_mask of shape");
  const std::string others = "expected no arguments but global_tokens";
  fails(ForwardOptions().bias(torch::zeros({5, 5})), others.c_str());
  fails(
      ForwardOptions().mask(torch::zeros({5, 5}, torch::kBool)),
      others.c_str());
  fails(ForwardOptions().positions(torch::arange(5)), others.c_str());
  fails(ForwardOptions().cu_seqlens(torch::tensor({0, 5})), others.c_str());
  fails(
      ForwardOptions().scores([](const torch::Tensor& s) { return s; }),
      others.c_str());
  attention->options.attention_window(3);
  THROWS_WITH(attention(x), "expected an even attention_window > 0, but got 3");
}

TEST_CASE("Other modules refuse global tokens") {
  const auto x = torch::randn({2, 5, 6});
  const auto call =
      ForwardOptions().global_tokens(torch::zeros({2, 5}, torch::kBool));
  const auto* message = "expected no global_tokens, which LongformerAttention";
  const auto refuses = [&](auto module) {
    THROWS_WITH(module->forward(x, call), message);
    THROWS_WITH(module->forward_with_weights(x, call), message);
  };
  refuses(SelfAttentionV1(6, 6));
  refuses(SelfAttentionV2(6, 6));
  refuses(CausalAttention(6, 6, 8, 0.0));
  refuses(MultiHeadAttentionWrapper(6, 3, 8, 0.0, 2));
  refuses(MultiHeadAttention(6, 6, 8, 0.0, 2));
  refuses(RelativeAttention(6, 6, 2));
  refuses(LatentAttention(LatentAttentionOptions(6, 6, 8, 2)
                              .kv_rank(4)
                              .nope_dim(4)
                              .rope_dim(2)
                              .value_dim(4)));
  CrossAttention cross(6, 6, 6, 2);
  THROWS_WITH(cross(x, x, call), message);
}

} // namespace longformer_attention_test
