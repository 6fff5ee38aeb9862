#include <distributed/support.h>

#include <functional>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

namespace torch_attention::testing {

namespace tensor_parallel_test {

constexpr int64_t kBatch = 2;
constexpr int64_t kTokens = 9;
constexpr int64_t kIn = 10;
constexpr int64_t kOut = 14;
constexpr int64_t kHeads = 24;
constexpr int64_t kHeadDim = 6;

using Options = MultiHeadAttentionOptions;

Options base() {
  return Options(kIn, kOut, /*context_length=*/12, kHeads).head_dim(kHeadDim);
}

/// A number of key heads that is not that of heads, and can be divided.
int64_t few_key_heads() {
  return processes() == 3 ? 3 : 4;
}

struct Variant {
  const char* name;
  Options options;
};

std::vector<Variant> variants() {
  const auto norm = [](HeadNormScope scope) {
    return HeadNormOptions(HeadNormKind::kRms).scope(scope);
  };
  std::vector<Variant> all = {
      {"plain", base()},
      {"biases", base().qkv_bias(true)},
      {"no out_bias", base().out_bias(false)},
      {"value_dim", base().value_dim(5).qkv_bias(true)},
      {"no out_proj",
       Options(kIn, kHeads * kHeadDim, 12, kHeads).out_proj(false)},
      {"one key head", base().num_kv_heads(1).qkv_bias(true)},
      {"few key heads", base().num_kv_heads(few_key_heads()).qkv_bias(true)},
      {"rotary", base().rotary(RotaryOptions())},
      {"alibi", base().alibi(true)},
      {"sinks", base().sinks(true)},
      {"window", base().window(3)},
      {"both windows", base().causal(false).window(3).window_after(2)},
      {"chunk", base().chunk(4)},
      {"softcap", base().softcap(2.0)},
      {"clip_qkv", base().clip_qkv(0.3)},
      {"value_norm", base().value_norm_eps(1e-6)},
      {"output_gate", base().output_gate(OutputGateOptions()).qkv_bias(true)},
      {"gate of heads",
       base().output_gate(OutputGateOptions(GateScope::kHead)
                              .function(GateFunction::kSoftplus))},
      {"norm of the context", base().out_norm(norm(HeadNormScope::kAllHeads))},
      {"norm of the context of heads",
       base()
           .out_norm(HeadNormOptions(HeadNormKind::kLayer).bias(true))
           .output_gate(OutputGateOptions())},
      {"scaled queries and values", base().query_scale(true).value_scale(0.3)},
      {"rotated values", base().rotary(RotaryOptions()).rotate_values(true)},
      {"not causal", base().causal(false).scale(0.3)},
      {"norm of heads", base().qk_norm(norm(HeadNormScope::kHead))},
      {"layer norm of heads",
       base().qk_norm(HeadNormOptions(HeadNormKind::kLayer).bias(true))},
      {"norm with weights of heads",
       base().qk_norm(norm(HeadNormScope::kHeadWeights))},
      {"norm of all heads", base().qk_norm(norm(HeadNormScope::kAllHeads))},
      {"norm of all, few key heads",
       base()
           .num_kv_heads(few_key_heads())
           .qk_norm(norm(HeadNormScope::kAllHeads))},
      {"norm with weights, one key head",
       base().num_kv_heads(1).qk_norm(norm(HeadNormScope::kHeadWeights))},
      {"temperature", base().temperature(TemperatureOptions(4).scale(0.1))},
      {"reference", base().kernel(Kernel::kReference)},
  };
  return all;
}

/// The whole, with parameters that are nowhere zero or one.
MultiHeadAttention make_whole(const Options& options, torch::Dtype dtype) {
  torch::manual_seed(1);
  MultiHeadAttention whole(options);
  const torch::NoGradGuard no_grad;
  for (auto& parameter : whole->parameters()) {
    parameter.add_(torch::rand_like(parameter), 0.1);
  }
  whole->to(dtype);
  return whole;
}

MultiHeadAttention split_copy(const MultiHeadAttention& whole) {
  auto copy = std::dynamic_pointer_cast<MultiHeadAttentionImpl>(whole->clone());
  distributed::tensor_parallel(*copy, group());
  return MultiHeadAttention(copy);
}

torch::Tensor input(torch::Dtype dtype) {
  torch::manual_seed(2);
  return torch::randn({kBatch, kTokens, kIn}, dtype).requires_grad_();
}

/// Compares outputs and all gradients of one call.
void check_same(
    MultiHeadAttention& module,
    MultiHeadAttention& whole,
    torch::Dtype dtype,
    const ForwardOptions& call = {}) {
  const auto x = input(dtype);
  const auto x_of_whole = input(dtype);
  torch::manual_seed(3);
  const auto output = module->forward(x, call);
  torch::manual_seed(3);
  const auto expected = whole->forward(x_of_whole, call);
  CHECK_THAT(output, IsAsOfOne(expected));
  torch::manual_seed(4);
  const auto gradient = torch::randn_like(expected);
  output.backward(gradient);
  expected.backward(gradient);
  CHECK_THAT(x.grad(), IsAsOfOne(x_of_whole.grad()));
  check_gradients(*module, *whole);
}

TEST_CASE("Parts of heads compute what all heads compute") {
  const auto dtype = GENERATE(torch::kFloat, torch::kDouble);
  for (const auto& variant : variants()) {
    INFO(variant.name << ", " << dtype);
    auto whole = make_whole(variant.options, dtype);
    auto module = split_copy(whole);
    CHECK(module->options.num_heads() == kHeads / processes());
    check_same(module, whole, dtype);
    module->eval();
    whole->eval();
    const torch::NoGradGuard no_grad;
    const auto x = input(dtype);
    CHECK_THAT(module->forward(x), IsAsOfOne(whole->forward(x)));
  }
}

TEST_CASE("Parts of heads drop what all heads drop") {
  const auto kernel = GENERATE(Kernel::kAuto, Kernel::kReference);
  const auto kv_heads = GENERATE(int64_t{kHeads}, int64_t{1});
  auto whole = make_whole(
      base().dropout(0.4).num_kv_heads(kv_heads).kernel(kernel),
      torch::kDouble);
  auto module = split_copy(whole);
  check_same(module, whole, torch::kDouble);
}

TEST_CASE("Masks and biases of a call are for all heads") {
  const auto dtype = torch::kDouble;
  auto whole = make_whole(base().alibi(true).rotary(RotaryOptions()), dtype);
  auto module = split_copy(whole);
  torch::manual_seed(5);
  ForwardOptions call;
  call.mask(torch::rand({kBatch, kHeads, kTokens, kTokens}).gt(0.8));
  call.bias(torch::randn({1, kHeads, kTokens, kTokens}, dtype));
  call.key_lengths(torch::tensor({9, 5}));
  call.positions(torch::arange(3, 3 + kTokens));
  check_same(module, whole, dtype, call);
  if (processes() > 1) {
    call.mask(torch::zeros({1, 2, kTokens, kTokens}, torch::kBool));
    THROWS_WITH(
        module->forward(input(dtype), call),
        "expected a mask for 1 or all 24 heads");
    THROWS_WITH(
        module->forward(
            input(dtype),
            ForwardOptions().scores([](const auto& scores) { return scores; })),
        "MultiHeadAttention: expected no function `scores`, where several "
        "processes share the heads");
  }
}

TEST_CASE("Values of another input are for all heads") {
  for (const auto& variant : variants()) {
    INFO(variant.name);
    auto whole = make_whole(variant.options, torch::kDouble);
    auto module = split_copy(whole);
    torch::manual_seed(8);
    const auto value = torch::randn({kBatch, kTokens, kIn}, torch::kDouble);
    const auto own_value = value.clone().requires_grad_();
    const auto whole_value = value.clone().requires_grad_();
    const auto x = input(torch::kDouble);
    const auto x_of_whole = input(torch::kDouble);
    const auto output =
        module->forward(x, ForwardOptions().value_input(own_value));
    const auto expected =
        whole->forward(x_of_whole, ForwardOptions().value_input(whole_value));
    CHECK_THAT(output, IsAsOfOne(expected));
    output.square().sum().backward();
    expected.square().sum().backward();
    CHECK_THAT(x.grad(), IsAsOfOne(x_of_whole.grad()));
    CHECK_THAT(own_value.grad(), IsAsOfOne(whole_value.grad()));
    check_gradients(*module, *whole);
  }
}

TEST_CASE("Packed sequences are for all heads") {
  const auto kernel = GENERATE(Kernel::kAuto, Kernel::kReference);
  auto whole = make_whole(
      base().rotary(RotaryOptions()).dropout(0.3).kernel(kernel),
      torch::kDouble);
  auto module = split_copy(whole);
  const auto compute = [&](MultiHeadAttention& of) {
    const auto x =
        input(torch::kDouble).detach().flatten(0, 1).requires_grad_();
    torch::manual_seed(6);
    const auto bias = torch::randn({3, kHeads, 11, 11}, torch::kDouble);
    const auto output = of->forward(
        x,
        ForwardOptions().cu_seqlens(torch::tensor({0, 7, 7, 18})).bias(bias));
    output.square().sum().backward();
    return std::make_pair(output, x.grad());
  };
  const auto [output, gradient] = compute(module);
  const auto [expected, expected_gradient] = compute(whole);
  CHECK_THAT(output, IsAsOfOne(expected));
  CHECK_THAT(gradient, IsAsOfOne(expected_gradient));
}

TEST_CASE("Weights of attention are those of the own heads") {
  auto whole = make_whole(base(), torch::kDouble);
  auto module = split_copy(whole);
  const auto x = input(torch::kDouble);
  const auto [output, weights] = module->forward_with_weights(x);
  const auto [expected, all_weights] = whole->forward_with_weights(x);
  CHECK_THAT(output, IsAsOfOne(expected));
  const auto own = kHeads / processes();
  CHECK_THAT(
      weights, IsAsOfOne(all_weights.narrow(1, group()->getRank() * own, own)));
}

TEST_CASE("Caches hold the own heads") {
  auto options = base().num_kv_heads(few_key_heads()).rotary(RotaryOptions());
  auto whole = make_whole(options.sinks(true), torch::kDouble);
  auto module = split_copy(whole);
  module->eval();
  whole->eval();
  auto cache = module->make_cache(kBatch);
  auto cache_of_whole = whole->make_cache(kBatch);
  CHECK(
      cache.options().num_kv_heads() ==
      std::max<int64_t>(1, few_key_heads() / processes()));
  const auto x = input(torch::kDouble).detach();
  for (const auto& part : {x.narrow(1, 0, 6), x.narrow(1, 6, 1)}) {
    CHECK_THAT(
        module->decode(part, cache),
        IsAsOfOne(whole->decode(part, cache_of_whole)));
  }
}

TEST_CASE("A clone shares the group") {
  auto whole = make_whole(
      base().qk_norm(HeadNormOptions().scope(HeadNormScope::kAllHeads)),
      torch::kDouble);
  const auto module = split_copy(whole);
  auto copy = MultiHeadAttention(
      std::dynamic_pointer_cast<MultiHeadAttentionImpl>(module->clone()));
  check_same(copy, whole, torch::kDouble);
}

TEST_CASE("Processes do not draw the same parameters for their parts") {
  auto module = split_copy(make_whole(base(), torch::kDouble));
  if (processes() > 1) {
    THROWS_WITH(
        module->reset_parameters(),
        "expected a whole module to reset its parameters");
  } else {
    CHECK_NOTHROW(module->reset_parameters());
  }
}

TEST_CASE("Weights of all heads are told where some are expected") {
  auto whole = make_whole(base(), torch::kDouble);
  auto module = split_copy(whole);
  module->eval();
  std::stringstream file;
  torch::save(whole, file);
  torch::load(module, file);
  const auto x = input(torch::kDouble);
  auto cache = module->make_cache(kBatch);
  if (processes() > 1) {
    const auto text = c10::str(
        "expected W_query with ", kHeads * kHeadDim / processes(), " outputs");
    THROWS_WITH(module->forward(x), text);
    THROWS_WITH(module->decode(x, cache), text);
  } else {
    CHECK_THAT(module->forward(x), IsAsOfOne(whole->forward(x)));
  }
}

TEST_CASE("Options make the parts of the module that one process makes") {
  torch::manual_seed(6);
  const auto module = distributed::tensor_parallel(base(), group());
  torch::manual_seed(6);
  const MultiHeadAttention whole(base());
  const auto shards = distributed::weight_shards(*module);
  const auto expected = whole->named_parameters();
  for (const auto& parameter : module->named_parameters()) {
    CHECK(parameter.value().equal(
        own_part(expected[parameter.key()], parameter.key(), shards)));
  }
}

TEST_CASE("Cross-attention is split as well") {
  const auto kv_heads = GENERATE(int64_t{kHeads}, int64_t{1});
  const auto dropout = GENERATE(0.0, 0.3);
  torch::manual_seed(7);
  CrossAttention whole(CrossAttentionOptions(kIn, 11, kOut, kHeads)
                           .head_dim(kHeadDim)
                           .num_kv_heads(kv_heads)
                           .dropout(dropout)
                           .qkv_bias(true)
                           .qk_norm(HeadNormOptions()));
  whole->to(torch::kDouble);
  CrossAttention module(
      std::dynamic_pointer_cast<CrossAttentionImpl>(whole->clone()));
  CHECK(distributed::tensor_parallel(*module, group()) == 1);
  const auto context = [] {
    torch::manual_seed(8);
    return torch::randn({kBatch, 7, 11}, torch::kDouble).requires_grad_();
  };
  const auto x = input(torch::kDouble);
  const auto x_of_whole = input(torch::kDouble);
  const auto own_context = context();
  const auto context_of_whole = context();
  torch::manual_seed(9);
  const auto output = module->forward(x, own_context);
  torch::manual_seed(9);
  const auto expected = whole->forward(x_of_whole, context_of_whole);
  CHECK_THAT(output, IsAsOfOne(expected));
  output.square().sum().backward();
  expected.square().sum().backward();
  CHECK_THAT(x.grad(), IsAsOfOne(x_of_whole.grad()));
  CHECK_THAT(own_context.grad(), IsAsOfOne(context_of_whole.grad()));
  check_gradients(*module, *whole);

  module->eval();
  whole->eval();
  const auto lengths = torch::tensor({7, 4});
  CHECK_THAT(
      module->decode(x.detach(), module->make_cache(own_context, lengths)),
      IsAsOfOne(whole->decode(
          x.detach(), whole->make_cache(context_of_whole, lengths))));
}

TEST_CASE("All attention of a model is split, and counted") {
  torch::nn::Sequential model(
      MultiHeadAttention(base()),
      torch::nn::Linear(kOut, kIn),
      MultiHeadAttention(base()));
  CHECK(distributed::tensor_parallel(*model, group()) == 2);
  CHECK(model->forward(input(torch::kFloat)).size(2) == kOut);
  THROWS_WITH(
      distributed::tensor_parallel(*model, group()), "was split before");
}

/// The gradients of a loss of the gradients of `inputs`.
std::vector<torch::Tensor> second_derivatives(
    const torch::Tensor& output,
    const std::vector<torch::Tensor>& inputs) {
  const auto first = torch::autograd::grad(
      {output.tanh().square().sum()},
      inputs,
      {},
      /*retain_graph=*/true,
      /*create_graph=*/true);
  auto loss = torch::zeros({}, torch::kDouble);
  for (const auto& gradient : first) {
    loss = loss + gradient.square().sum();
  }
  return torch::autograd::grad({loss}, inputs);
}

/// Compares second derivatives by `inputs` and all parameters of `module` with
/// those of the whole.
template <typename Module>
void check_second_derivatives(
    Module& module,
    Module& whole,
    const std::function<
        torch::Tensor(Module&, const std::vector<torch::Tensor>&)>& forward,
    const std::vector<torch::Tensor>& inputs) {
  const auto computed = [&](Module& of) {
    auto all = inputs;
    for (auto& x : all) {
      x = x.detach().clone().requires_grad_();
    }
    const auto output = forward(of, all);
    for (const auto& parameter : of->parameters()) {
      all.push_back(parameter);
    }
    return second_derivatives(output, all);
  };
  const auto parts = computed(module);
  const auto expected = computed(whole);
  const auto shards = distributed::weight_shards(*module);
  const auto parameters = whole->named_parameters();
  for (size_t i = 0; i < parts.size(); ++i) {
    const auto key = i < inputs.size()
        ? c10::str("input ", i)
        : parameters.keys().at(i - inputs.size());
    INFO(key);
    // The rounding of products of gradients.
    CHECK_THAT(parts[i], IsAsOfOne(own_part(expected[i], key, shards), 1e-11));
  }
}

TEST_CASE("Second derivatives are those of the whole") {
  for (const auto& variant : variants()) {
    INFO(variant.name);
    auto whole = make_whole(variant.options, torch::kDouble);
    auto module = split_copy(whole);
    check_second_derivatives<MultiHeadAttention>(
        module,
        whole,
        [](auto& of, const auto& inputs) {
          return of->forward(inputs[0], ForwardOptions().bias(inputs[1]));
        },
        {input(torch::kDouble),
         torch::zeros({1, kHeads, kTokens, kTokens}, torch::kDouble)});
  }
}

TEST_CASE("Second derivatives of cross-attention are those of the whole") {
  const auto kv_heads = GENERATE(int64_t{kHeads}, int64_t{1});
  torch::manual_seed(7);
  CrossAttention whole(
      CrossAttentionOptions(kIn, 11, kOut, kHeads)
          .head_dim(kHeadDim)
          .num_kv_heads(kv_heads)
          .qk_norm(HeadNormOptions().scope(HeadNormScope::kAllHeads)));
  whole->to(torch::kDouble);
  CrossAttention module(
      std::dynamic_pointer_cast<CrossAttentionImpl>(whole->clone()));
  distributed::tensor_parallel(*module, group());
  check_second_derivatives<CrossAttention>(
      module,
      whole,
      [](auto& of, const auto& inputs) {
        return of->forward(inputs[0], inputs[1]);
      },
      {input(torch::kDouble), torch::randn({kBatch, 7, 11}, torch::kDouble)});
}

TEST_CASE("Gradients of what all heads share are those of all heads") {
  const auto dtype = torch::kDouble;
  auto whole = make_whole(base().rotary(RotaryOptions()), dtype);
  auto module = split_copy(whole);
  const auto check =
      [&](const std::vector<int64_t>& sizes,
          const std::function<ForwardOptions(const torch::Tensor&)>&
              call_with) {
        CAPTURE(sizes);
        const auto gradient = [&](MultiHeadAttention& of) {
          torch::manual_seed(10);
          const auto learned = torch::randn(sizes, dtype).requires_grad_();
          const auto output = of->forward(input(dtype), call_with(learned));
          return torch::autograd::grad({output.square().sum()}, {learned})[0];
        };
        CHECK_THAT(gradient(module), IsAsOfOne(gradient(whole)));
      };
  for (const auto& sizes : std::vector<std::vector<int64_t>>{
           {kTokens, kTokens},
           {1, kTokens},
           {1, 1, kTokens, kTokens},
           {1, kHeads, kTokens, kTokens},
           {kBatch, 1, kTokens, 1},
           {kBatch, kHeads, kTokens, kTokens}}) {
    check(sizes, [](const auto& bias) { return ForwardOptions().bias(bias); });
  }
  for (const auto& sizes : std::vector<std::vector<int64_t>>{
           {kTokens, kHeadDim / 2}, {kBatch, kTokens, kHeadDim / 2}}) {
    check(sizes, [](const auto& table) {
      return ForwardOptions().rotary_cos(table).rotary_sin(table);
    });
  }
}

TEST_CASE("Parts of heads compute in half precision") {
  const bool autocast = GENERATE(false, true);
  auto whole =
      make_whole(base().num_kv_heads(1).rotary(RotaryOptions()), torch::kFloat);
  auto module = split_copy(whole);
  const auto x_of_whole = input(torch::kFloat);
  const auto expected = whole->forward(x_of_whole);
  expected.square().sum().backward();
  auto x = input(torch::kFloat);
  if (!autocast) {
    module->to(torch::kBFloat16);
    x = x.detach().to(torch::kBFloat16).requires_grad_();
  }
  torch::Tensor output;
  if (autocast) {
    const Autocast guard;
    output = module->forward(x);
  } else {
    output = module->forward(x);
  }
  CHECK(output.scalar_type() == torch::kBFloat16);
  check_close_in_half(output, expected);
  output.to(torch::kFloat).square().sum().backward();
  check_close_in_half(x.grad(), x_of_whole.grad());
  const auto shards = distributed::weight_shards(*module);
  const auto all = whole->named_parameters();
  for (const auto& parameter : module->named_parameters()) {
    INFO(parameter.key());
    check_close_in_half(
        parameter.value().grad(),
        own_part(all[parameter.key()].grad(), parameter.key(), shards));
  }
}

TEST_CASE("One sum forward and one backward are sent") {
  auto module = split_copy(make_whole(base(), torch::kDouble));
  distributed::reset_traffic();
  const auto output = module->forward(input(torch::kDouble));
  // With the comparison.
  CHECK(distributed::traffic().operations == 2);
  output.sum().backward();
  CHECK(distributed::traffic().operations == 3);
}

} // namespace tensor_parallel_test

} // namespace torch_attention::testing
