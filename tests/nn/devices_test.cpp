// Tensors on different devices are refused. LibTorch's operators return memory
// that was not written where one of them is on the device meta.

#include <support/test.h>

#include <functional>

namespace devices_test {

using namespace torch_attention;
using namespace torch_attention::testing;
namespace F = torch_attention::functional;

namespace {

torch::Tensor meta(const torch::Tensor& x) {
  return x.detach().to(torch::kMeta);
}

using Tensors = std::vector<torch::Tensor>;

/// Calls `fn` with each of `tensors` alone on the device meta, then with each
/// alone on the CPU.
void check_refused(
    const Tensors& tensors,
    const std::function<void(const Tensors&)>& fn) {
  fn(tensors);
  for (size_t i = 0; i < tensors.size(); ++i) {
    CAPTURE(i);
    auto mixed = tensors;
    mixed[i] = meta(mixed[i]);
    CHECK_THROWS_AS(fn(mixed), c10::Error);
  }
}

/// The options of attention with all tensors that follow query, key and value.
F::ScaledDotProductAttentionFuncOptions options_of(const Tensors& t) {
  return F::ScaledDotProductAttentionFuncOptions()
      .mask(t[3])
      .bias(t[4])
      .alibi_slopes(t[5])
      .sinks(t[6])
      .key_lengths(t[7])
      .query_offsets(t[8]);
}

/// Moves a parameter of a linear layer. Returns whether it is one.
bool move_to_meta(torch::nn::Module& module, const std::string& name) {
  for (const auto& item : module.named_modules("", /*include_self=*/false)) {
    auto* linear = item.value()->as<torch::nn::LinearImpl>();
    if (linear == nullptr) {
      continue;
    }
    if (name == item.key() + ".weight") {
      linear->weight = meta(linear->weight);
      return true;
    }
    if (name == item.key() + ".bias") {
      linear->bias = meta(linear->bias);
      return true;
    }
  }
  return false;
}

} // namespace

TEST_CASE("Functions refuse one tensor on another device") {
  const auto kernel = GENERATE(Kernel::kAuto, Kernel::kReference);
  const auto x = torch::randn({2, 3, 4, 8});
  const auto attend = [&](const Tensors& t) {
    F::scaled_dot_product_attention(
        t[0], t[1], t[2], options_of(t).kernel(kernel));
  };
  const Tensors rules = {
      x,
      x,
      x,
      torch::zeros({4, 4}, torch::kBool),
      torch::zeros({4, 4}),
      torch::zeros({3}),
      torch::zeros({3}),
      torch::tensor({4, 4}),
      torch::tensor({0, 0})};
  check_refused(rules, attend);
  check_refused(rules, [&](const Tensors& t) {
    F::scaled_dot_product_attention_with_weights(
        t[0], t[1], t[2], options_of(t));
  });
  check_refused(
      {x.narrow(0, 0, 1),
       x.narrow(0, 0, 1),
       x.narrow(0, 0, 1),
       torch::tensor({0, 1, 4}),
       torch::tensor({0, 1, 4})},
      [&](const Tensors& t) {
        F::scaled_dot_product_attention(
            t[0],
            t[1],
            t[2],
            F::ScaledDotProductAttentionFuncOptions()
                .cu_seqlens(t[3])
                .cu_seqlens_k(t[4]));
      });
  check_refused(
      {x, x}, [](const Tensors& t) { F::attention_scores(t[0], t[1]); });
  check_refused(
      {torch::randn({2, 3, 4, 4}), rules[3], rules[4], rules[5]},
      [](const Tensors& t) {
        F::attention_weights(
            t[0],
            8,
            F::ScaledDotProductAttentionFuncOptions()
                .mask(t[1])
                .bias(t[2])
                .alibi_slopes(t[3]));
      });
  check_refused({x, torch::arange(4)}, [](const Tensors& t) {
    F::rotary_embedding(t[0], t[1]);
  });
  const auto table = torch::rand({4, 4});
  check_refused({x, table, table, torch::arange(4)}, [](const Tensors& t) {
    F::rotary_embedding(t[0], RotaryTables(t[1], t[2]).positions(t[3]));
  });
  check_refused({x, torch::ones({8})}, [](const Tensors& t) {
    F::rms_norm(t[0], t[1], 1e-5);
  });
  // Small and large, as kernels of different sizes compute them.
  for (const int64_t rows : {1, 3, 200}) {
    check_refused(
        {torch::randn({rows, 8}), torch::randn({16, 8}), torch::randn({16})},
        [](const Tensors& t) { F::linear(t[0], t[1], t[2]); });
  }
}

TEST_CASE("Calls of modules refuse one argument on another device") {
  const auto x = torch::randn({2, 4, 8});
  MultiHeadAttention attention(MultiHeadAttentionOptions(8, 8, 6, 2)
                                   .rotary(RotaryOptions())
                                   .alibi(true));
  MultiHeadAttention small(MultiHeadAttentionOptions(8, 8, 6, 2));
  for (auto& module : {attention, small}) {
    auto called = module;
    check_refused(
        {x,
         torch::zeros({4, 4}, torch::kBool),
         torch::zeros({4, 4}),
         torch::zeros({2, 4}, torch::kBool),
         torch::tensor({4, 4})},
        [&](const Tensors& t) {
          called(
              t[0],
              ForwardOptions()
                  .mask(t[1])
                  .bias(t[2])
                  .key_padding_mask(t[3])
                  .key_lengths(t[4]));
        });
  }
  check_refused({x, torch::arange(4)}, [&](const Tensors& t) {
    attention(t[0], ForwardOptions().positions(t[1]));
  });
  MultiHeadAttention rotated(
      MultiHeadAttentionOptions(8, 8, 6, 2).rotary(RotaryOptions()));
  const auto table = torch::rand({4, 2});
  check_refused({x, table, table}, [&](const Tensors& t) {
    rotated(t[0], ForwardOptions().rotary_cos(t[1]).rotary_sin(t[2]));
  });
  CrossAttention cross(8, 8, 8, 2);
  check_refused({x, x, torch::zeros({4, 4})}, [&](const Tensors& t) {
    cross->forward(t[0], t[1], ForwardOptions().bias(t[2]));
  });
  rotated->eval();
  check_refused({x, torch::tensor({4, 3})}, [&](const Tensors& t) {
    auto cache = rotated->make_cache(2);
    rotated->decode(t[0], cache, DecodeOptions(t[1]));
  });
  auto cache = rotated->make_cache(2);
  cache.to(torch::kMeta);
  CHECK_THROWS_AS(rotated->decode(x, cache), c10::Error);
}

TEST_CASE("Modules with one parameter on another device are refused") {
  const auto x = torch::randn({2, 4, 8});
  const auto run = [&](auto make, const auto& call) {
    const auto names = make()->named_parameters().keys();
    for (const auto& name : names) {
      CAPTURE(name);
      auto module = make();
      if (!move_to_meta(*module, name)) {
        continue;
      }
      const torch::NoGradGuard no_grad;
      CHECK_THROWS_AS(call(module), std::exception);
    }
  };
  const auto forward = [&](auto& module) { module->forward(x); };
  for (const int i : {0, 1, 2}) {
    SelfAttentionV1 module(SelfAttentionOptions(8, 8));
    auto& weight = i == 0 ? module->W_query
        : i == 1          ? module->W_key
                          : module->W_value;
    weight = meta(weight);
    CHECK_THROWS_AS(module(x), c10::Error);
  }
  run([] { return SelfAttentionV2(SelfAttentionOptions(8, 8)); }, forward);
  run([] { return CausalAttention(CausalAttentionOptions(8, 8, 6)); }, forward);
  run(
      [] {
        return MultiHeadAttentionWrapper(
            MultiHeadAttentionWrapperOptions(8, 4, 6, 2));
      },
      forward);
  run([] { return MultiHeadAttention(MultiHeadAttentionOptions(8, 8, 6, 2)); },
      forward);
  const auto all = MultiHeadAttentionOptions(8, 8, 6, 2)
                       .qkv_bias(true)
                       .qk_norm(HeadNormOptions())
                       .sinks(true)
                       .output_gate(OutputGateOptions());
  run([&] { return MultiHeadAttention(all); }, forward);
  run([&] { return MultiHeadAttention(all); },
      [&](auto& module) {
        module->eval();
        auto cache = module->make_cache(2);
        module->decode(x, cache);
      });
  run([] { return CrossAttention(8, 8, 8, 2); },
      [&](auto& module) { module->forward(x, x); });
  const auto relative = RelativeAttentionOptions(8, 8, 2);
  run([&] { return RelativeAttention(relative); }, forward);
  run(
      [&] {
        return RelativeAttention(
            RelativeAttentionOptions(relative).kind(RelativeKind::kLearned));
      },
      forward);
  run(
      [&] {
        return RelativeAttention(RelativeAttentionOptions(relative)
                                     .kind(RelativeKind::kDisentangled)
                                     .buckets(4));
      },
      forward);
  run([] { return LongformerAttention(8, 8, 2); },
      [&](auto& module) {
        const auto is_global = torch::arange(4).eq(1).expand({2, 4});
        module->forward(x, ForwardOptions().global_tokens(is_global));
      });
  const auto latent = LatentAttentionOptions(8, 8, 6, 2)
                          .kv_rank(4)
                          .nope_dim(4)
                          .rope_dim(2)
                          .value_dim(4);
  run([&] { return LatentAttention(latent); }, forward);
  run([&] { return LatentAttention(latent); },
      [&](auto& module) {
        module->eval();
        auto cache = module->make_cache(2);
        module->decode(x, cache);
        module->decode(x.slice(1, 0, 1), cache);
      });
}

} // namespace devices_test
