#include <support/close.h>
#include <support/test.h>

#include <ATen/autocast_mode.h>

#include <sstream>

namespace modules_test {

using namespace torch_attention;
using namespace torch_attention::testing;

namespace {

std::vector<std::string> state_dict_keys(const torch::nn::Module& module) {
  auto keys = module.named_parameters().keys();
  const auto buffers = module.named_buffers().keys();
  keys.insert(keys.end(), buffers.begin(), buffers.end());
  return keys;
}

std::string printed(const torch::nn::Module& module) {
  std::ostringstream stream;
  stream << module;
  return stream.str();
}

using Keys = std::vector<std::string>;

} // namespace

TEST_CASE("State-dict keys and their order are Python's") {
  CHECK(
      state_dict_keys(*SelfAttentionV1(3, 2)) ==
      Keys{"W_query", "W_key", "W_value"});
  CHECK(
      state_dict_keys(*SelfAttentionV2(3, 2)) ==
      Keys{"W_query.weight", "W_key.weight", "W_value.weight"});
  CHECK(
      state_dict_keys(*CausalAttention(3, 2, 6, 0.0, true)) ==
      Keys{
          "W_query.weight",
          "W_query.bias",
          "W_key.weight",
          "W_key.bias",
          "W_value.weight",
          "W_value.bias",
          "mask"});
  CHECK(
      state_dict_keys(*MultiHeadAttention(3, 2, 6, 0.0, 2)) ==
      Keys{
          "W_query.weight",
          "W_key.weight",
          "W_value.weight",
          "out_proj.weight",
          "out_proj.bias",
          "mask"});
  CHECK(
      state_dict_keys(*MultiHeadAttentionWrapper(3, 2, 6, 0.0, 2)) ==
      Keys{
          "heads.0.W_query.weight",
          "heads.0.W_key.weight",
          "heads.0.W_value.weight",
          "heads.1.W_query.weight",
          "heads.1.W_key.weight",
          "heads.1.W_value.weight",
          "heads.0.mask",
          "heads.1.mask"});
  CHECK(
      MultiHeadAttention(3, 2, 6, 0.0, 2)->named_children().keys() ==
      Keys{"W_query", "W_key", "W_value", "out_proj", "dropout"});
}

TEST_CASE("Both constructor forms make the same module") {
  const auto seeded = [](auto make) {
    torch::manual_seed(123);
    return make();
  };
  const auto x = torch::rand({2, 6, 3});
  SECTION("CausalAttention") {
    auto a = seeded([] { return CausalAttention(3, 2, 6, 0.0, true); });
    auto b = seeded([] {
      return CausalAttention(CausalAttentionOptions(3, 2, 6).qkv_bias(true));
    });
    CHECK_THAT(a->forward(x), IsEqualTo(b->forward(x)));
  }
  SECTION("MultiHeadAttention") {
    auto a = seeded([] { return MultiHeadAttention(3, 4, 6, 0.0, 2, true); });
    auto b = seeded([] {
      return MultiHeadAttention(
          MultiHeadAttentionOptions(3, 4, 6, 2).qkv_bias(true));
    });
    CHECK_THAT(a->forward(x), IsEqualTo(b->forward(x)));
  }
  SECTION("MultiHeadAttentionWrapper") {
    auto a =
        seeded([] { return MultiHeadAttentionWrapper(3, 4, 6, 0.0, 2, true); });
    auto b = seeded([] {
      return MultiHeadAttentionWrapper(
          MultiHeadAttentionWrapperOptions(3, 4, 6, 2).qkv_bias(true));
    });
    CHECK_THAT(a->forward(x), IsEqualTo(b->forward(x)));
  }
  SECTION("SelfAttentionV2") {
    auto a = seeded([] { return SelfAttentionV2(3, 2, true); });
    auto b = seeded([] {
      return SelfAttentionV2(SelfAttentionOptions(3, 2).qkv_bias(true));
    });
    CHECK_THAT(a->forward(x[0]), IsEqualTo(b->forward(x[0])));
  }
}

TEST_CASE("reset_parameters draws what the constructor drew") {
  const auto check = [](auto make) {
    torch::manual_seed(5);
    auto module = make();
    std::vector<torch::Tensor> before;
    for (const auto& parameter : module->parameters()) {
      before.push_back(parameter.detach().clone());
    }
    torch::manual_seed(5);
    module->reset_parameters();
    const auto after = module->parameters();
    for (size_t i = 0; i < before.size(); ++i) {
      CHECK_THAT(after[i].detach(), IsEqualTo(before[i]));
    }
  };
  check([] { return SelfAttentionV1(3, 2); });
  check([] { return SelfAttentionV2(3, 2, true); });
  check([] { return CausalAttention(3, 2, 6, 0.0, true); });
  check([] { return MultiHeadAttention(3, 2, 6, 0.0, 2, true); });
  check([] { return MultiHeadAttentionWrapper(3, 2, 6, 0.0, 2, true); });
}

TEST_CASE("Modules print themselves as LibTorch's do") {
  CHECK(
      printed(*SelfAttentionV1(3, 2)) ==
      "torch_attention::SelfAttentionV1(d_in=3, d_out=2, kernel=auto)");
  CHECK(
      printed(*SelfAttentionV2(3, 2))
          .rfind(
              "torch_attention::SelfAttentionV2(d_in=3, d_out=2, qkv_bias=false, "
              "kernel=auto)(\n  (W_query): torch::nn::Linear(",
              0) == 0);
  CHECK(
      printed(*CausalAttention(3, 2, 6, 0.1))
          .rfind(
              "torch_attention::CausalAttention(d_in=3, d_out=2, "
              "context_length=6, dropout=0.1, qkv_bias=false, causal=true, "
              "kernel=auto)(\n",
              0) == 0);
  CHECK(
      printed(*MultiHeadAttention(MultiHeadAttentionOptions(3, 8, 6, 4)
                                      .num_kv_heads(2)
                                      .causal(false)
                                      .kernel(Kernel::kFused)))
          .rfind(
              "torch_attention::MultiHeadAttention(d_in=3, d_out=8, "
              "context_length=6, num_heads=4, num_kv_heads=2, dropout=0, "
              "qkv_bias=false, causal=false, kernel=fused)(\n",
              0) == 0);
  CHECK_THAT(
      printed(*MultiHeadAttentionWrapper(3, 2, 6, 0.0, 2)),
      ContainsText(
          "torch_attention::MultiHeadAttentionWrapper(num_heads=2)(") &&
          ContainsText("(1): torch_attention::CausalAttention("));
}

TEST_CASE("Weights of every head are had from every module") {
  torch::manual_seed(1);
  const auto x = torch::rand({2, 5, 3});
  const auto check = [&](auto module, torch::IntArrayRef shape) {
    module->eval();
    const auto [output, weights] = module->forward_with_weights(x);
    CHECK_THAT(output, IsCloseTo(module->forward(x)));
    CHECK_THAT(weights, HasShape(shape));
    CHECK_THAT(
        weights.sum(-1),
        IsCloseTo(torch::ones(weights.sizes().slice(0, shape.size() - 1))));
  };
  check(SelfAttentionV1(3, 2), {2, 5, 5});
  check(SelfAttentionV2(3, 2), {2, 5, 5});
  check(CausalAttention(3, 2, 6, 0.5), {2, 5, 5});
  check(MultiHeadAttention(3, 8, 6, 0.5, 4), {2, 4, 5, 5});
  check(MultiHeadAttentionWrapper(3, 2, 6, 0.5, 3), {2, 3, 5, 5});
  const auto [output, weights] =
      SelfAttentionV1(3, 2)->forward_with_weights(x[0]);
  CHECK_THAT(output, HasShape({5, 2}));
  CHECK_THAT(weights, HasShape({5, 5}));
}

TEST_CASE("Grouped heads equal heads with repeated keys and values") {
  torch::manual_seed(2);
  const auto kernel =
      GENERATE(Kernel::kReference, Kernel::kFused, Kernel::kAuto);
  MultiHeadAttention grouped(MultiHeadAttentionOptions(6, 8, 7, 4)
                                 .num_kv_heads(2)
                                 .qkv_bias(true)
                                 .kernel(kernel));
  MultiHeadAttention full(
      MultiHeadAttentionOptions(6, 8, 7, 4).qkv_bias(true).kernel(kernel));
  {
    torch::NoGradGuard no_grad;
    // Query heads 0 and 1 share the first key head, 2 and 3 the second.
    const auto repeat = [](const torch::Tensor& x) {
      auto sizes = x.sizes().vec();
      sizes[0] *= 2;
      return x.unflatten(0, {2, 2}).repeat_interleave(2, 0).reshape(sizes);
    };
    CHECK_THAT(grouped->W_key->weight, HasShape({4, 6}));
    full->W_query->weight.copy_(grouped->W_query->weight);
    full->W_query->bias.copy_(grouped->W_query->bias);
    full->W_key->weight.copy_(repeat(grouped->W_key->weight));
    full->W_key->bias.copy_(repeat(grouped->W_key->bias));
    full->W_value->weight.copy_(repeat(grouped->W_value->weight));
    full->W_value->bias.copy_(repeat(grouped->W_value->bias));
    full->out_proj->weight.copy_(grouped->out_proj->weight);
    full->out_proj->bias.copy_(grouped->out_proj->bias);
  }
  const auto x = torch::randn({2, 7, 6});
  CHECK_THAT(grouped->forward(x), IsCloseTo(full->forward(x)));
}

TEST_CASE("out_proj(false) leaves the concatenated heads") {
  torch::manual_seed(3);
  MultiHeadAttention attention(
      MultiHeadAttentionOptions(3, 4, 6, 2).out_proj(false));
  CHECK(attention->out_proj.is_empty());
  CHECK_FALSE(attention->named_parameters().contains("out_proj.weight"));
  const auto x = torch::rand({2, 6, 3});
  const auto [context, weights] = attention->forward_with_weights(x);
  const auto values = attention->W_value(x).view({2, 6, 2, 2}).transpose(1, 2);
  CHECK_THAT(
      context,
      IsCloseTo(
          torch::matmul(weights, values).transpose(1, 2).reshape({2, 6, 4})));
  attention->reset_parameters();
}

TEST_CASE("A clone is equal and independent") {
  torch::manual_seed(4);
  const auto check = [](auto module, const torch::Tensor& x) {
    using Impl = typename decltype(module)::ContainedType;
    module->eval();
    const auto expected = module->forward(x).detach().clone();
    const auto copy = std::dynamic_pointer_cast<Impl>(module->clone());
    REQUIRE(copy != nullptr);
    copy->eval();
    CHECK_THAT(copy->forward(x), IsEqualTo(expected));
    CHECK(state_dict_keys(*copy) == state_dict_keys(*module));
    {
      torch::NoGradGuard no_grad;
      for (auto& parameter : copy->parameters()) {
        parameter.add_(1);
      }
    }
    CHECK_THAT(module->forward(x), IsEqualTo(expected));
  };
  const auto x = torch::rand({2, 6, 3});
  check(SelfAttentionV1(3, 2), x[0]);
  check(SelfAttentionV2(3, 2, true), x[0]);
  check(CausalAttention(3, 2, 6, 0.1), x);
  check(MultiHeadAttention(3, 4, 6, 0.1, 2, true), x);
  check(MultiHeadAttentionWrapper(3, 4, 6, 0.1, 2), x);
}

TEST_CASE("A module follows to(device) and to(dtype), its clone too") {
  torch::manual_seed(5);
  const auto dtype = GENERATE(torch::kDouble, torch::kBFloat16, torch::kHalf);
  const auto device = select_device("auto");
  CAPTURE(dtype, device);
  const auto check = [&](auto module) {
    const auto x = torch::rand({2, 6, 3});
    module->eval();
    const auto expected = module->forward(x);
    module->to(device, dtype);
    const auto output = module->forward(x.to(device, dtype));
    CHECK(output.scalar_type() == dtype);
    CHECK(output.device().type() == device.type());
    // bfloat16 keeps 8 bits, float16 11.
    CHECK_THAT(
        output.to(torch::kFloat).cpu(),
        IsCloseTo(expected, Tolerance().rtol(0.02).atol(0.02)));
    for (const auto& buffer : module->buffers()) {
      CHECK(buffer.scalar_type() == dtype);
    }
    const auto copy = module->clone();
    for (const auto& parameter : copy->parameters()) {
      CHECK(parameter.scalar_type() == dtype);
    }
  };
  check(CausalAttention(3, 2, 6, 0.1));
  check(MultiHeadAttention(3, 4, 6, 0.1, 2));
  check(MultiHeadAttentionWrapper(3, 4, 6, 0.1, 2));
}

TEST_CASE("Modules are parts of LibTorch models") {
  torch::manual_seed(6);
  const auto x = torch::rand({2, 6, 3});
  SECTION("in Sequential") {
    torch::nn::Sequential model;
    model->push_back(MultiHeadAttention(3, 4, 6, 0.0, 2));
    model->push_back(CausalAttention(4, 4, 6, 0.0));
    model->push_back(MultiHeadAttentionWrapper(4, 2, 6, 0.0, 3));
    model->push_back(torch::nn::Linear(6, 5));
    CHECK_THAT(model->forward(x), HasShape({2, 6, 5}));
    CHECK_THAT(
        std::dynamic_pointer_cast<torch::nn::SequentialImpl>(model->clone())
            ->forward(x),
        IsEqualTo(model->forward(x)));
  }
  SECTION("in AnyModule") {
    MultiHeadAttention attention(3, 4, 6, 0.0, 2);
    torch::nn::AnyModule any(attention);
    CHECK_THAT(any.forward(x), IsEqualTo(attention(x)));
    CHECK_THAT(any.clone().forward(x), IsEqualTo(attention(x)));
  }
  SECTION("as a member") {
    struct BlockImpl : torch::nn::Cloneable<BlockImpl> {
      BlockImpl() {
        reset();
      }
      void reset() override {
        att = register_module("att", MultiHeadAttention(3, 3, 6, 0.0, 3));
      }
      torch::Tensor forward(const torch::Tensor& input) {
        return input + att(input);
      }
      MultiHeadAttention att = nullptr;
    };
    const auto block = std::make_shared<BlockImpl>();
    CHECK(block->named_parameters().contains("att.W_query.weight"));
    const auto copy = std::dynamic_pointer_cast<BlockImpl>(block->clone());
    CHECK_THAT(copy->forward(x), IsEqualTo(block->forward(x)));
  }
  SECTION("saved and read by LibTorch's own archive") {
    MultiHeadAttention from(3, 4, 6, 0.0, 2);
    MultiHeadAttention to(3, 4, 6, 0.0, 2);
    std::stringstream stream;
    torch::save(from, stream);
    torch::load(to, stream);
    CHECK_THAT(to(x), IsEqualTo(from(x)));
  }
}

TEST_CASE("Dropout is off in evaluation and follows a changed p") {
  torch::manual_seed(7);
  MultiHeadAttention attention(3, 4, 6, 0.5, 2);
  const auto x = torch::rand({2, 6, 3});
  attention->eval();
  const auto expected = attention(x);
  CHECK_THAT(attention(x), IsEqualTo(expected));
  attention->train();
  CHECK_FALSE(attention(x).equal(expected));
  attention->dropout->options.p(0.0);
  CHECK_THAT(attention(x), IsCloseTo(expected));
}

TEST_CASE("Modules with own scores are computed under autocast") {
  torch::manual_seed(3);
  const torch::NoGradGuard no_grad;
  const auto x = torch::randn({2, 9, 8});
  const auto check = [&](auto module) {
    std::ostringstream text;
    text << module;
    CAPTURE(text.str());
    module->eval();
    const auto expected = module->forward(x);
    at::autocast::set_autocast_enabled(at::kCPU, true);
    at::autocast::set_autocast_dtype(at::kCPU, at::kBFloat16);
    const auto output = module->forward(x);
    at::autocast::clear_cache();
    at::autocast::set_autocast_enabled(at::kCPU, false);
    CHECK(output.scalar_type() == torch::kBFloat16);
    CHECK_THAT(output.to(torch::kFloat), IsCloseTo(expected, {0.05, 0.05}));
  };
  for (const auto kind :
       {RelativeKind::kLearned,
        RelativeKind::kSinusoids,
        RelativeKind::kDisentangled}) {
    check(RelativeAttention(RelativeAttentionOptions(8, 8, 2).kind(kind)));
  }
  check(RelativeAttention(RelativeAttentionOptions(8, 8, 2)
                              .kind(RelativeKind::kRowsAndColumns)
                              .height(3)
                              .width(3)));
  check(LongformerAttention(
      LongformerAttentionOptions(8, 8, 2).attention_window(4)));
  check(LatentAttention(LatentAttentionOptions(8, 8, 16, 2)
                            .query_rank(6)
                            .kv_rank(4)
                            .nope_dim(4)
                            .rope_dim(4)
                            .value_dim(4)
                            .indexer(IndexerOptions(8, 6, 12))));
}

TEST_CASE("Under autocast inputs may be of the lower precision") {
  torch::manual_seed(8);
  MultiHeadAttention attention(3, 4, 6, 0.0, 2);
  const auto x = torch::rand({2, 6, 3});
  const auto expected = attention(x);
  at::autocast::set_autocast_enabled(at::kCPU, true);
  at::autocast::set_autocast_dtype(at::kCPU, at::kBFloat16);
  const auto lower = attention(x.to(torch::kBFloat16));
  const auto mixed = attention(x);
  at::autocast::clear_cache();
  at::autocast::set_autocast_enabled(at::kCPU, false);
  CHECK(lower.scalar_type() == torch::kBFloat16);
  CHECK_THAT(
      lower.to(torch::kFloat),
      IsCloseTo(expected, Tolerance().rtol(0.02).atol(0.02)));
  CHECK_THAT(
      mixed.to(torch::kFloat),
      IsCloseTo(expected, Tolerance().rtol(0.02).atol(0.02)));
}

} // namespace modules_test
