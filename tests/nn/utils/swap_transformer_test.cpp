#include <support/close.h>
#include <support/test.h>

namespace swap_transformer_test {

using namespace torch_attention;
using namespace torch_attention::testing;
using torch::nn::TransformerDecoderLayerOptions;
using torch::nn::TransformerEncoderLayerOptions;

namespace {

constexpr int64_t kFeatures = 16;

torch::nn::TransformerEncoder encoder_of_libtorch(double dropout = 0) {
  return torch::nn::TransformerEncoder(
      torch::nn::TransformerEncoderOptions(
          TransformerEncoderLayerOptions(kFeatures, 4)
              .dim_feedforward(32)
              .dropout(dropout)
              .activation(torch::kGELU),
          2)
          .norm(torch::nn::AnyModule(
              torch::nn::LayerNorm(torch::nn::LayerNormOptions({kFeatures})))));
}

torch::nn::TransformerDecoder decoder_of_libtorch() {
  return torch::nn::TransformerDecoder(torch::nn::TransformerDecoderOptions(
      TransformerDecoderLayerOptions(kFeatures, 4)
          .dim_feedforward(32)
          .dropout(0),
      2));
}

/// (T, B, C)
torch::Tensor tokens(int64_t T) {
  return torch::randn({T, 2, kFeatures});
}

torch::Tensor causal(int64_t T) {
  return torch::nn::TransformerImpl::generate_square_subsequent_mask(T);
}

/// True hides the last tokens of the second sequence.
torch::Tensor padding(int64_t T) {
  auto mask = torch::zeros({2, T}, torch::kBool);
  mask[1].slice(0, T - 2).fill_(true);
  return mask;
}

/// The output, then the gradients of all parameters.
std::vector<torch::Tensor> with_gradients(
    const torch::nn::Module& module,
    const torch::Tensor& output) {
  auto result = torch::autograd::grad(
      {output.sin().sum()},
      module.parameters(),
      {},
      /*retain_graph=*/std::nullopt,
      /*create_graph=*/false,
      /*allow_unused=*/true);
  result.insert(result.begin(), output.detach());
  return result;
}

void check_close(
    const std::vector<torch::Tensor>& actual,
    const std::vector<torch::Tensor>& expected) {
  check_all_close(actual, expected, {1e-4, 1e-5});
}

std::vector<std::string> keys_of(const torch::nn::Module& module) {
  return module.named_parameters().keys();
}

} // namespace

TEST_CASE("A swapped encoder shares LibTorch's weights and gives its results") {
  torch::manual_seed(1);
  auto theirs = encoder_of_libtorch();
  SwappedTransformerEncoder ours(theirs);
  CHECK(keys_of(*ours) == keys_of(*theirs));
  for (size_t i = 0; i < theirs->parameters().size(); ++i) {
    CHECK(ours->parameters()[i].is_same(theirs->parameters()[i]));
  }
  const auto x = tokens(5);
  check_close(
      with_gradients(*ours, ours(x, causal(5), padding(5))),
      with_gradients(*theirs, theirs(x, causal(5), padding(5))));
  CHECK_THAT(ours(x), IsCloseTo(theirs(x), {1e-4, 1e-5}));
}

namespace {

/// nn.MultiheadAttention with what is added to its scores (B, H, T, S).
torch::Tensor by_definition(
    const torch::nn::MultiheadAttentionImpl& m,
    const torch::Tensor& query,
    const torch::Tensor& memory,
    const torch::Tensor& added) {
  const auto B = query.size(1);
  const auto H = m.options.num_heads();
  const auto project = [&](const torch::Tensor& x, size_t i) {
    return torch::linear(
        x, m.in_proj_weight.chunk(3)[i], m.in_proj_bias.chunk(3)[i]);
  };
  auto key = project(memory, 1);
  auto value = project(memory, 2);
  auto all_added = added;
  const auto add = [&](const torch::Tensor& k, const torch::Tensor& v) {
    key = torch::cat({key, k.repeat({1, B, 1})});
    value = torch::cat({value, v.repeat({1, B, 1})});
    all_added = torch::cat(
        {all_added, torch::zeros_like(all_added.slice(-1, 0, 1))}, -1);
  };
  if (m.bias_k.defined()) {
    add(m.bias_k, m.bias_v);
  }
  if (m.options.add_zero_attn()) {
    const auto zero = torch::zeros({1, 1, kFeatures});
    add(zero, zero);
  }
  const auto heads = [&](const torch::Tensor& x) {
    return x.view({x.size(0), B, H, -1}).permute({1, 2, 0, 3});
  };
  const auto scores =
      torch::matmul(heads(project(query, 0)), heads(key).transpose(-2, -1)) /
      std::sqrt(static_cast<double>(kFeatures / H));
  const auto weights = torch::softmax(scores + all_added.to(torch::kFloat), -1);
  const auto context = torch::matmul(weights, heads(value));
  return torch::linear(
      context.permute({2, 0, 1, 3}).reshape(query.sizes()),
      m.out_proj->weight,
      m.out_proj->bias);
}

} // namespace

TEST_CASE("Masks of an attention are read as Python reads them") {
  torch::manual_seed(9);
  constexpr int64_t B = 2;
  constexpr int64_t H = 4;
  const bool with_bias_kv = GENERATE(false, true);
  const bool adds_zero = GENERATE(false, true);
  torch::nn::MultiheadAttention module(
      torch::nn::MultiheadAttentionOptions(kFeatures, H)
          .add_bias_kv(with_bias_kv)
          .add_zero_attn(adds_zero));
  const auto query = tokens(5);
  const auto memory = tokens(7);
  // The first key is seen, so that LibTorch's are no NaN.
  const auto bools = [](torch::IntArrayRef sizes) {
    auto mask = torch::rand(sizes) > 0.5;
    mask.select(-1, 0).fill_(false);
    return mask;
  };
  const auto as_float = [](const torch::Tensor& mask) {
    return !mask.defined() || mask.is_floating_point()
        ? mask
        : torch::zeros(mask.sizes())
              .masked_fill(mask, -std::numeric_limits<double>::infinity());
  };
  const std::vector<torch::Tensor> masks = {
      {},
      bools({5, 7}),
      bools({B * H, 5, 7}),
      torch::randn({5, 7}),
      torch::randn({B * H, 5, 7}),
      torch::randn({5, 7}, torch::kDouble)};
  const std::vector<torch::Tensor> paddings = {
      {}, bools({B, 7}), torch::randn({B, 7})};
  for (const auto& mask : masks) {
    for (const auto& padding : paddings) {
      CAPTURE(mask, padding);
      auto added = torch::zeros({B, H, 5, 7}, torch::kDouble);
      if (mask.defined()) {
        added = added +
            (mask.dim() == 3 ? as_float(mask).view({B, H, 5, 7})
                             : as_float(mask));
      }
      if (padding.defined()) {
        added = added + as_float(padding).view({B, 1, 1, 7});
      }
      const auto expected = by_definition(*module, query, memory, added);
      const auto actual = attend(module, query, memory, memory, padding, mask);
      CHECK_THAT(actual.detach(), IsCloseTo(expected.detach(), {1e-4, 1e-5}));
    }
  }
}

TEST_CASE("Masks that Python refuses are refused") {
  const torch::nn::MultiheadAttention module(kFeatures, 4);
  const auto x = tokens(5);
  for (const auto dtype : {torch::kByte, torch::kLong}) {
    const auto mask = torch::zeros({5, 5}, dtype);
    THROWS_WITH(attend(module, x, x, x, {}, mask), "expected a bool attn_mask");
    THROWS_WITH(
        attend(module, x, x, x, torch::zeros({2, 5}, dtype)),
        "expected a bool key_padding_mask");
  }
  THROWS_WITH(
      attend(module, x, x, x, {}, torch::zeros({5, 4})),
      "expected attn_mask of shape (T, S) or (B * H, T, S)");
  THROWS_WITH(
      attend(module, x, x, x, {}, torch::zeros({2, 5, 5})),
      "expected attn_mask of shape");
  THROWS_WITH(
      attend(module, x, x, x, torch::zeros({5, 2})),
      "expected key_padding_mask of shape (B, S)");
  THROWS_WITH(
      attend(module, x, x, x, {}, torch::zeros({5, 5}, torch::kMeta)),
      "expected the attn_mask on cpu");
}

TEST_CASE("Bool masks hide in swapped encoders and decoders") {
  torch::manual_seed(10);
  auto encoder = encoder_of_libtorch();
  auto decoder = decoder_of_libtorch();
  const auto x = tokens(5);
  const auto memory = tokens(7);
  const auto bool_causal = torch::ones({5, 5}, torch::kBool).triu(1);
  const auto bool_memory = torch::ones({5, 7}, torch::kBool).triu(3);
  const auto infinite = torch::zeros({5, 7}).masked_fill(
      bool_memory, -std::numeric_limits<double>::infinity());
  CHECK_THAT(
      SwappedTransformerEncoder(encoder)(x, bool_causal).detach(),
      IsCloseTo(encoder(x, causal(5)).detach(), {1e-4, 1e-5}));
  CHECK_THAT(
      SwappedTransformerDecoder(decoder)(x, memory, bool_causal, bool_memory)
          .detach(),
      IsCloseTo(
          decoder(x, memory, causal(5), infinite).detach(), {1e-4, 1e-5}));
}

TEST_CASE("A swapped decoder shares LibTorch's weights and gives its results") {
  torch::manual_seed(1);
  auto theirs = decoder_of_libtorch();
  SwappedTransformerDecoder ours(theirs);
  CHECK(keys_of(*ours) == keys_of(*theirs));
  const auto x = tokens(5);
  const auto memory = tokens(7);
  const auto memory_mask = torch::randn({5, 7});
  check_close(
      with_gradients(
          *ours,
          ours(x, memory, causal(5), memory_mask, padding(5), padding(7))),
      with_gradients(
          *theirs,
          theirs(x, memory, causal(5), memory_mask, padding(5), padding(7))));
}

TEST_CASE("Swapped encoders take dropout and evaluation from LibTorch's") {
  torch::manual_seed(1);
  auto theirs = encoder_of_libtorch(/*dropout=*/0.5);
  const auto x = tokens(5);
  SwappedTransformerEncoder training(theirs);
  CHECK_FALSE(torch::allclose(training(x), training(x)));
  theirs->eval();
  SwappedTransformerEncoder ours(theirs);
  CHECK_FALSE(ours->is_training());
  CHECK_THAT(ours(x), IsCloseTo(theirs(x), {1e-4, 1e-5}));
}

TEST_CASE("Layers of a swapped encoder keep their own modes") {
  auto theirs = encoder_of_libtorch();
  theirs->layers[0]->eval();
  SwappedTransformerEncoder ours(theirs);
  CHECK(ours->is_training());
  CHECK_FALSE(ours->layers[0]->is_training());
  CHECK(ours->layers[1]->is_training());
}

TEST_CASE("A clone of a swapped encoder has weights of its own") {
  torch::manual_seed(1);
  SwappedTransformerEncoder ours(encoder_of_libtorch());
  const auto x = tokens(5);
  const auto before = ours(x).detach();
  const auto copy =
      std::dynamic_pointer_cast<SwappedTransformerEncoderImpl>(ours->clone());
  REQUIRE(copy != nullptr);
  {
    const torch::NoGradGuard no_grad;
    for (auto& parameter : ours->parameters()) {
      parameter.add_(1);
    }
  }
  CHECK_THAT(copy->forward(x), IsEqualTo(before));
}

TEST_CASE("swap_attention swaps what a torch::nn::Transformer holds") {
  torch::manual_seed(1);
  torch::nn::Transformer model(torch::nn::TransformerOptions(kFeatures, 4)
                                   .num_encoder_layers(2)
                                   .num_decoder_layers(2)
                                   .dim_feedforward(32)
                                   .dropout(0));
  const auto src = tokens(7);
  const auto tgt = tokens(5);
  const auto run = [&] {
    return with_gradients(
        *model,
        model->forward(
            src, tgt, {}, causal(5), {}, padding(7), {}, padding(7)));
  };
  const auto expected = run();
  const auto keys = keys_of(*model);
  const auto parameters = model->parameters();

  const auto report = swap_attention(*model);
  CHECK(report.swapped == std::vector<std::string>{"encoder", "decoder"});
  CHECK(report.left.empty());
  CHECK(model->encoder.type_info() == typeid(SwappedTransformerEncoderImpl));
  CHECK(keys_of(*model) == keys);
  for (size_t i = 0; i < parameters.size(); ++i) {
    CHECK(model->parameters()[i].is_same(parameters[i]));
  }
  check_close(run(), expected);
  CHECK(swap_attention(*model).swapped.empty());
}

TEST_CASE("swap_attention swaps a transformer of two names once") {
  torch::nn::Transformer shared(torch::nn::TransformerOptions(kFeatures, 4)
                                    .num_encoder_layers(1)
                                    .num_decoder_layers(1));
  torch::nn::ModuleDict model;
  model->update({{"a", shared.ptr()}, {"b", shared.ptr()}});
  const auto report = swap_attention(*model);
  CHECK(
      report.swapped ==
      std::vector<std::string>{
          "a.encoder", "a.decoder", "b.encoder", "b.decoder"});
  CHECK(report.left.empty());
  CHECK(shared->encoder.type_info() == typeid(SwappedTransformerEncoderImpl));
  CHECK(shared->encoder.ptr() == shared->named_children()["encoder"]);
}

TEST_CASE("swap_attention swaps children of Sequential and reports members") {
  torch::manual_seed(1);
  SECTION("a child of Sequential") {
    torch::nn::Sequential model(
        torch::nn::Linear(kFeatures, kFeatures), encoder_of_libtorch());
    const auto x = tokens(5);
    const auto expected = model->forward(x);
    const auto report = swap_attention(*model);
    CHECK(report.swapped == std::vector<std::string>{"1"});
    CHECK(report.left.empty());
    CHECK_THAT(model->forward(x), IsCloseTo(expected, {1e-4, 1e-5}));
    CHECK(
        dynamic_cast<SwappedTransformerEncoderImpl*>(
            model->named_children()["1"].get()) != nullptr);
  }
  SECTION("members") {
    struct Model : torch::nn::Module {
      torch::nn::TransformerEncoder encoder =
          register_module("encoder", encoder_of_libtorch());
      torch::nn::MultiheadAttention attention = register_module(
          "attention",
          torch::nn::MultiheadAttention(kFeatures, 4));
    };
    const auto model = std::make_shared<Model>();
    const auto report = swap_attention(*model);
    CHECK(report.swapped.empty());
    CHECK(
        report.left ==
        std::vector<std::string>{
            "encoder: held by a C++ member; declare that as "
            "torch_attention::SwappedTransformerEncoder",
            "attention: call it by torch_attention::attend"});
    CHECK(model->named_children()["encoder"].get() == model->encoder.get());
  }
}

TEST_CASE("attend computes a MultiheadAttention of LibTorch's") {
  torch::manual_seed(1);
  using Options = torch::nn::MultiheadAttentionOptions;
  const auto check = [](const Options& options,
                        const torch::Tensor& query,
                        const torch::Tensor& key,
                        const torch::Tensor& value) {
    torch::nn::MultiheadAttention module(options);
    if (module->in_proj_bias.defined()) {
      torch::nn::init::normal_(module->in_proj_bias);
    }
    const auto S = key.size(0);
    for (const bool masked : {false, true}) {
      CAPTURE(masked);
      const auto mask =
          masked ? torch::randn({query.size(0), S}) : torch::Tensor();
      const auto hidden = masked ? padding(S) : torch::Tensor();
      check_close(
          with_gradients(
              *module, attend(module, query, key, value, hidden, mask)),
          with_gradients(
              *module,
              std::get<0>(module(query, key, value, hidden, false, mask))));
    }
  };
  const auto x = tokens(5);
  const auto memory = tokens(7);
  SECTION("of itself") {
    check(Options(kFeatures, 4), x, x, x);
  }
  SECTION("of others") {
    check(Options(kFeatures, 4), x, memory, tokens(7));
  }
  SECTION("without bias") {
    check(Options(kFeatures, 4).bias(false), x, memory, memory);
  }
  SECTION("with keys and values of another size") {
    // LibTorch takes no other for values than for keys.
    check(
        Options(kFeatures, 4).kdim(6).vdim(6),
        x,
        torch::randn({7, 2, 6}),
        torch::randn({7, 2, 6}));
  }
  SECTION("with what is left to LibTorch") {
    check(Options(kFeatures, 4).add_zero_attn(true), x, x, x);
    check(Options(kFeatures, 4).add_bias_kv(true), x, x, x);
  }
  SECTION("with LibTorch's messages") {
    const torch::nn::MultiheadAttention module(Options(kFeatures, 4));
    CHECK_THROWS_AS(attend(module, x, memory, x), c10::Error);
    CHECK_THROWS_AS(
        attend(module, x, x, x, torch::zeros({2, 4}, torch::kBool)),
        c10::Error);
  }
}

} // namespace swap_transformer_test
