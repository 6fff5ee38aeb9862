// No tokens, no sequences, no keys: results without numbers, not errors.

#include <support/close.h>
#include <support/test.h>

#include <vector>

namespace empty_test {

using namespace torch_attention;
using namespace torch_attention::testing;
namespace F = torch_attention::functional;
using Options = F::ScaledDotProductAttentionFuncOptions;

namespace {

struct Sizes {
  int64_t B;
  int64_t T;
};

std::vector<Sizes> empty_sizes() {
  return {{2, 0}, {0, 3}, {0, 0}};
}

/// Checks the output, and the gradients if they are `wanted`.
template <typename Module>
void check_empty(Module& module, int64_t d_out, bool wanted) {
  for (const auto& [B, T] : empty_sizes()) {
    CAPTURE(B, T);
    const torch::AutoGradMode grad_mode(wanted);
    const auto x = torch::randn({B, T, 4}).requires_grad_(wanted);
    const auto y = module->forward(x);
    CHECK_THAT(y, HasShape({B, T, d_out}));
    const auto [context, weights] = module->forward_with_weights(x);
    CHECK_THAT(context, HasShape({B, T, d_out}));
    if (wanted) {
      module->zero_grad();
      y.sum().backward();
      CHECK_THAT(x.grad(), HasShape({B, T, 4}));
      for (const auto& parameter : module->parameters()) {
        CHECK(
            (!parameter.grad().defined() ||
             parameter.grad().eq(0).all().template item<bool>()));
      }
    }
  }
}

} // namespace

TEST_CASE("Modules take no tokens and no sequences") {
  const auto kernel =
      GENERATE(Kernel::kReference, Kernel::kFused, Kernel::kAuto);
  const bool wanted = GENERATE(false, true);
  CAPTURE(kernel, wanted);
  const auto base = MultiHeadAttentionOptions(4, 8, 6, 2).kernel(kernel);
  const std::vector<MultiHeadAttentionOptions> all = {
      base,
      MultiHeadAttentionOptions(base).rotary(RotaryOptions()),
      MultiHeadAttentionOptions(base).alibi(true).softcap(2).window(2),
      MultiHeadAttentionOptions(base)
          .chunk(2)
          .sinks(true)
          .clip_qkv(1)
          .temperature(TemperatureOptions(2)),
      MultiHeadAttentionOptions(base).num_kv_heads(1).out_proj(false),
      MultiHeadAttentionOptions(base).dropout(0.5).causal(false)};
  for (size_t i = 0; i < all.size(); ++i) {
    CAPTURE(i);
    MultiHeadAttention module(all[i]);
    check_empty(module, 8, wanted);
  }
  CausalAttention causal(
      CausalAttentionOptions(4, 8, 6).kernel(kernel).window(2));
  check_empty(causal, 8, wanted);
  MultiHeadAttentionWrapper wrapper(
      MultiHeadAttentionWrapperOptions(4, 8, 6, 2).kernel(kernel));
  check_empty(wrapper, 16, wanted);
  SelfAttentionV1 first(SelfAttentionOptions(4, 8).kernel(kernel));
  check_empty(first, 8, wanted);
  SelfAttentionV2 second(SelfAttentionOptions(4, 8).kernel(kernel));
  check_empty(second, 8, wanted);
}

TEST_CASE("A cache takes no tokens") {
  const bool rotary = GENERATE(false, true);
  const auto kernel = GENERATE(Kernel::kReference, Kernel::kFused);
  CAPTURE(rotary, kernel);
  auto options = MultiHeadAttentionOptions(4, 8, 6, 2).kernel(kernel);
  if (rotary) {
    options.rotary(RotaryOptions());
  }
  MultiHeadAttention attention(options);
  attention->eval();
  auto cache = attention->make_cache(2);
  const auto nothing = torch::randn({2, 0, 4});
  CHECK_THAT(attention->decode(nothing, cache), HasShape({2, 0, 8}));
  const auto x = torch::randn({2, 3, 4});
  CHECK_THAT(attention->decode(x, cache), IsCloseTo(attention->forward(x)));
  CHECK_THAT(attention->decode(nothing, cache), HasShape({2, 0, 8}));
  const auto none = torch::zeros({2}, torch::kLong);
  attention->decode(x, cache, none);
  CHECK(cache.lengths().eq(3).all().item<bool>());
}

TEST_CASE("Functions take any empty dimension, with every option") {
  const auto kernel =
      GENERATE(Kernel::kReference, Kernel::kFused, Kernel::kAuto);
  const bool wanted = GENERATE(false, true);
  const int empty = GENERATE(0, 1, 2, 3, 4);
  CAPTURE(kernel, wanted, empty);
  const int64_t B = empty == 0 ? 0 : 2;
  const int64_t H = empty == 1 ? 0 : 2;
  const int64_t T = empty == 2 ? 0 : 3;
  const int64_t S = empty == 3 ? 0 : 5;
  const int64_t E = empty == 4 ? 0 : 4;
  std::vector<Options> all(12, Options().kernel(kernel));
  all[1].causal(true);
  all[2].window(2).window_after(1);
  all[3].key_lengths(torch::full({B}, 2));
  all[4].query_offsets(torch::full({B}, 1)).causal(true);
  all[5].mask(torch::zeros({T, S}, torch::kBool));
  all[6].bias(torch::zeros({H, T, S}).requires_grad_(wanted));
  all[7].softcap(2);
  all[8].alibi_slopes(torch::ones({H}).requires_grad_(wanted));
  all[9].dropout(0.5);
  all[10].chunk(2).query_offsets(torch::full({B}, 1));
  all[11].sinks(torch::ones({H}).requires_grad_(wanted));
  for (size_t i = 0; i < all.size(); ++i) {
    CAPTURE(i);
    const auto query = torch::randn({B, H, T, 4}).requires_grad_(wanted);
    const auto key = torch::randn({B, H, S, 4}).requires_grad_(wanted);
    const auto value = torch::randn({B, H, S, E}).requires_grad_(wanted);
    const auto output =
        F::scaled_dot_product_attention(query, key, value, all[i]);
    CHECK_THAT(output, IsEqualTo(torch::zeros({B, H, T, E})));
    if (wanted) {
      output.sum().backward();
      for (const auto& x : {query, key, value}) {
        CHECK((!x.grad().defined() || x.grad().eq(0).all().item<bool>()));
      }
    }
  }
  const auto rotated = F::rotary_embedding(
      torch::randn({B, H, T, 4}), torch::arange(T), RotaryOptions());
  CHECK_THAT(rotated, HasShape({B, H, T, 4}));
}

} // namespace empty_test
