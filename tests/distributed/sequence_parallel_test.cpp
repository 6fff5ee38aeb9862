#include <distributed/support.h>

#include <torch_attention/distributed/sequence_parallel.h>

#include <limits>
#include <utility>

namespace torch_attention::testing {

namespace sequence_parallel_test {

using distributed::SequenceOptions;
using distributed::TokenLayout;
using FuncOptions = functional::ScaledDotProductAttentionFuncOptions;

constexpr int64_t kBatch = 2;
constexpr int64_t kHeads = 24;
/// Divisible by twice each number of processes.
constexpr int64_t kTokens = 96;
constexpr int64_t kDim = 5;
constexpr int64_t kValueDim = 7;
constexpr uint64_t kDropoutSeed = 3;

struct Tensors {
  torch::Tensor query;
  torch::Tensor key;
  torch::Tensor value;
};

/// Equal numbers in all processes.
Tensors wholes(torch::Dtype dtype, int64_t kv_heads) {
  torch::manual_seed(1);
  return {
      torch::randn({kBatch, kHeads, kTokens, kDim}, dtype),
      torch::randn({kBatch, kv_heads, kTokens, kDim}, dtype),
      torch::randn({kBatch, kv_heads, kTokens, kValueDim}, dtype)};
}

struct Variant {
  const char* name;
  FuncOptions options;
  int64_t kv_heads = kHeads;
};

int64_t few_key_heads() {
  return processes() == 3 ? 3 : 4;
}

std::vector<Variant> variants(torch::Dtype dtype) {
  torch::manual_seed(2);
  const auto causal = FuncOptions().causal(true).enable_gqa(true);
  const auto all = FuncOptions().enable_gqa(true);
  const auto with = [](FuncOptions options, auto&& change) {
    change(options);
    return options;
  };
  return {
      {"all keys", all},
      {"causal", causal},
      {"one key head", causal, 1},
      {"few key heads", all, few_key_heads()},
      {"scale", with(causal, [](auto& o) { o.scale(0.2); })},
      {"softcap", with(causal, [](auto& o) { o.softcap(1.5); })},
      {"short window", with(causal, [](auto& o) { o.window(3); })},
      {"long window", with(causal, [](auto& o) { o.window(40); })},
      {"both windows",
       with(all, [](auto& o) { o.window(9).window_after(14); })},
      {"chunk", with(causal, [](auto& o) { o.chunk(24); })},
      {"odd chunk", with(causal, [](auto& o) { o.chunk(7); })},
      {"sinks",
       with(
           causal,
           [dtype](auto& o) { o.sinks(torch::randn({kHeads}, dtype)); })},
      {"alibi",
       with(
           causal,
           [](auto& o) { o.alibi_slopes(functional::alibi_slopes(kHeads)); })},
      {"alibi to both sides",
       with(
           all,
           [](auto& o) { o.alibi_slopes(functional::alibi_slopes(kHeads)); })},
      {"lengths",
       with(
           causal,
           [](auto& o) {
             o.key_lengths(torch::tensor({96, 37}));
           })},
      {"lengths and sinks",
       with(
           all,
           [dtype](auto& o) {
             o.key_lengths(torch::tensor({0, 11}))
                 .sinks(torch::randn({kHeads}, dtype));
           })},
      {"mask",
       with(
           all,
           [](auto& o) {
             o.mask(torch::rand({kBatch, 1, kTokens, kTokens}).gt(0.5));
           })},
      {"padding",
       with(
           all,
           [](auto& o) {
             o.mask(torch::rand({kBatch, 1, 1, kTokens}).gt(0.5));
           })},
      {"bias",
       with(
           causal,
           [dtype](auto& o) {
             o.bias(torch::randn({kHeads, kTokens, kTokens}, dtype));
           })},
      {"bias of all heads",
       with(
           causal,
           [dtype](auto& o) {
             o.bias(torch::randn({kTokens, kTokens}, dtype));
           })},
      {"bias of keys",
       with(
           all,
           [dtype](auto& o) {
             o.bias(torch::randn({kBatch, kHeads, 1, kTokens}, dtype));
           })},
  };
}

torch::Tensor attend(
    bool all_to_all,
    const Tensors& own,
    const FuncOptions& options,
    TokenLayout layout) {
  const auto attention = all_to_all ? distributed::all_to_all_attention
                                    : distributed::ring_attention;
  return attention(
      own.query,
      own.key,
      own.value,
      group(),
      options,
      SequenceOptions().layout(layout));
}

/// The gradients of query, key and value, and of sinks and bias if there are
/// any, by one process in float64.
std::vector<torch::Tensor> exact_gradients(
    const Tensors& whole,
    FuncOptions options,
    const torch::Tensor& gradient) {
  std::vector<torch::Tensor> inputs;
  const auto add = [&](const torch::Tensor& x) {
    inputs.push_back(x.detach().to(torch::kDouble).requires_grad_());
    return inputs.back();
  };
  const auto query = add(whole.query);
  const auto key = add(whole.key);
  const auto value = add(whole.value);
  if (options.sinks().defined()) {
    options.sinks(add(options.sinks()));
  }
  if (options.bias().defined()) {
    options.bias(add(options.bias()));
  }
  if (options.alibi_slopes().defined() &&
      options.alibi_slopes().requires_grad()) {
    options.alibi_slopes(add(options.alibi_slopes()));
  }
  torch::manual_seed(kDropoutSeed);
  const auto output =
      functional::scaled_dot_product_attention(query, key, value, options);
  return torch::autograd::grad({output}, inputs, {gradient.to(torch::kDouble)});
}

/// Compares outputs and gradients of all inputs.
void check_same(
    bool all_to_all,
    const Variant& variant,
    torch::Dtype dtype,
    TokenLayout layout) {
  const auto own = [&](const torch::Tensor& x) {
    return distributed::own_tokens(x, 2, group(), layout);
  };
  auto whole = wholes(dtype, variant.kv_heads);
  Tensors parts{own(whole.query), own(whole.key), own(whole.value)};
  for (auto* tensors : {&whole, &parts}) {
    for (auto* x : {&tensors->query, &tensors->key, &tensors->value}) {
      *x = x->detach().requires_grad_();
    }
  }
  auto options = variant.options;
  auto options_of_whole = variant.options;
  const auto leaf = [](const torch::Tensor& x) {
    return x.defined() ? x.detach().clone().requires_grad_() : x;
  };
  const auto rows = [&](const torch::Tensor& x) {
    return x.defined() && x.size(-2) != 1
        ? distributed::own_tokens(x, x.dim() - 2, group(), layout)
        : x;
  };
  options.sinks(leaf(options.sinks())).bias(leaf(rows(options.bias())));
  options_of_whole.sinks(leaf(options_of_whole.sinks()))
      .bias(leaf(options_of_whole.bias()));
  options.mask(rows(options.mask()));
  if (options.alibi_slopes().defined()) {
    const auto slopes = options.alibi_slopes().to(dtype);
    options.alibi_slopes(leaf(slopes));
    options_of_whole.alibi_slopes(leaf(slopes));
  }
  torch::manual_seed(kDropoutSeed);
  const auto output = attend(all_to_all, parts, options, layout);
  torch::manual_seed(kDropoutSeed);
  const auto expected = functional::scaled_dot_product_attention(
      whole.query, whole.key, whole.value, options_of_whole);
  CHECK_THAT(output, IsAsOfOne(own(expected)));
  torch::manual_seed(4);
  const auto gradient = torch::randn_like(expected);
  output.backward(own(gradient));
  expected.backward(gradient);
  const auto exact = exact_gradients(whole, options_of_whole, gradient);
  // The rounding of one process is allowed too, as far as docs/distributed.md
  // says that it goes.
  const auto error_of_one = [&](size_t i, const torch::Tensor& of_whole) {
    const auto error = largest(of_whole - exact[i]);
    CHECK(
        error <= (dtype == torch::kDouble ? 1e-12 : 2e-6) *
            std::max(1.0, largest(exact[i])));
    return error;
  };
  const auto check_gradient =
      [&](size_t i, const torch::Tensor& x, const torch::Tensor& of_whole) {
        const auto error = error_of_one(i, of_whole.grad());
        CHECK_THAT(x.grad(), IsAsOfOne(own(of_whole.grad()), error));
      };
  check_gradient(0, parts.query, whole.query);
  check_gradient(1, parts.key, whole.key);
  check_gradient(2, parts.value, whole.value);
  size_t next = 3;
  const auto check_of_all = [&](const torch::Tensor& x,
                                const torch::Tensor& of_whole) {
    distributed::sum_gradients({x}, group());
    const auto error = error_of_one(next++, of_whole.grad());
    CHECK_THAT(x.grad(), IsAsOfOne(of_whole.grad(), error));
  };
  if (options.sinks().defined()) {
    check_of_all(options.sinks(), options_of_whole.sinks());
  }
  if (options.alibi_slopes().defined()) {
    check_of_all(options.alibi_slopes(), options_of_whole.alibi_slopes());
  }
  const auto& bias = options.bias();
  if (bias.defined() && bias.size(-2) == 1) {
    check_of_all(bias, options_of_whole.bias());
  } else if (bias.defined()) {
    const auto& of_whole = options_of_whole.bias().grad();
    CHECK_THAT(
        bias.grad(), IsAsOfOne(rows(of_whole), error_of_one(next, of_whole)));
  }
}

TEST_CASE("Attention of some tokens each is that of all tokens") {
  const auto all_to_all = GENERATE(false, true);
  const auto layout =
      GENERATE(TokenLayout::kContiguous, TokenLayout::kBalanced);
  const auto dtype = GENERATE(torch::kFloat, torch::kDouble);
  for (const auto& variant : variants(dtype)) {
    INFO(
        (all_to_all ? "all to all, " : "ring, ")
        << (layout == TokenLayout::kBalanced ? "balanced, " : "contiguous, ")
        << dtype << ", " << variant.name);
    check_same(all_to_all, variant, dtype, layout);
  }
}

/// The number of tokens of each piece of a sequence.
int64_t piece(TokenLayout layout) {
  return kTokens / processes() / (layout == TokenLayout::kBalanced ? 2 : 1);
}

TEST_CASE("Processes drop what one process drops") {
  const auto all_to_all = GENERATE(false, true);
  const auto layout =
      GENERATE(TokenLayout::kContiguous, TokenLayout::kBalanced);
  const auto dtype = GENERATE(torch::kFloat, torch::kDouble);
  const auto base = FuncOptions().enable_gqa(true).dropout(0.3);
  const auto lengths = torch::tensor({kTokens, int64_t{50}});
  for (const auto& variant : std::vector<Variant>{
           {"both ways", FuncOptions(base), few_key_heads()},
           {"causal", FuncOptions(base).causal(true), few_key_heads()},
           // Keys are seen from odd ones on.
           {"window 7",
            FuncOptions(base).causal(true).window(7),
            few_key_heads()},
           {"chunks of 10",
            FuncOptions(base).causal(true).chunk(10),
            few_key_heads()},
           {"lengths", FuncOptions(base).key_lengths(lengths), kHeads},
           {"everything", FuncOptions(base).dropout(1), kHeads},
       }) {
    INFO(
        (all_to_all ? "all to all, " : "ring, ")
        << (layout == TokenLayout::kBalanced ? "balanced, " : "contiguous, ")
        << dtype << ", " << variant.name);
    if (!all_to_all && processes() > 1 && piece(layout) % 4 != 0) {
      THROWS_WITH(
          check_same(all_to_all, variant, dtype, layout), "divisible by 4");
    } else {
      check_same(all_to_all, variant, dtype, layout);
    }
  }
}

TEST_CASE("Half precision is joined in float32") {
  const auto all_to_all = GENERATE(false, true);
  const bool autocast = GENERATE(false, true);
  const auto options = FuncOptions().causal(true);
  auto whole = wholes(torch::kFloat, kHeads);
  Tensors parts;
  const auto leaves = [&](torch::Tensor& own, torch::Tensor& x) {
    x.requires_grad_();
    own = distributed::own_tokens(x.detach(), 2, group());
    own = (autocast ? own.clone() : own.to(torch::kBFloat16)).requires_grad_();
  };
  leaves(parts.query, whole.query);
  leaves(parts.key, whole.key);
  leaves(parts.value, whole.value);
  const auto expected = functional::scaled_dot_product_attention(
      whole.query, whole.key, whole.value, options);
  expected.sum().backward();
  const auto compute = [&] {
    const auto output =
        attend(all_to_all, parts, options, TokenLayout::kContiguous);
    CHECK(output.scalar_type() == torch::kBFloat16);
    check_close_in_half(output, distributed::own_tokens(expected, 2, group()));
    output.sum().backward();
  };
  if (autocast) {
    // With the backward pass inside, too.
    const Autocast guard;
    compute();
  } else {
    compute();
  }
  const auto check = [&](const torch::Tensor& x,
                         const torch::Tensor& of_whole) {
    CHECK(x.grad().scalar_type() == x.scalar_type());
    check_close_in_half(
        x.grad(), distributed::own_tokens(of_whole.grad(), 2, group()));
  };
  check(parts.query, whole.query);
  check(parts.key, whole.key);
  check(parts.value, whole.value);
}

TEST_CASE("Gradients of all_to_all_attention can be differentiated again") {
  const auto layout =
      GENERATE(TokenLayout::kContiguous, TokenLayout::kBalanced);
  const auto options = FuncOptions().causal(true).enable_gqa(true);
  const auto own = [&](const torch::Tensor& x) {
    return distributed::own_tokens(x, 2, group(), layout);
  };
  const auto leaf = [](const torch::Tensor& x) {
    return x.detach().clone().requires_grad_();
  };
  const auto all = wholes(torch::kDouble, few_key_heads());
  const Tensors whole{leaf(all.query), leaf(all.key), leaf(all.value)};
  const Tensors parts{
      leaf(own(all.query)), leaf(own(all.key)), leaf(own(all.value))};
  const auto differentiate = [](const torch::Tensor& output, const Tensors& x) {
    const auto first = torch::autograd::grad(
        {output.square().sum()},
        {x.query, x.key},
        {},
        /*retain_graph=*/true,
        /*create_graph=*/true);
    (first[0].square().sum() + first[1].square().sum()).backward();
  };
  differentiate(attend(/*all_to_all=*/true, parts, options, layout), parts);
  differentiate(
      functional::scaled_dot_product_attention(
          whole.query, whole.key, whole.value, options),
      whole);
  CHECK_THAT(parts.query.grad(), IsAsOfOne(own(whole.query.grad())));
  CHECK_THAT(parts.key.grad(), IsAsOfOne(own(whole.key.grad())));
  CHECK_THAT(parts.value.grad(), IsAsOfOne(own(whole.value.grad())));
}

TEST_CASE("A mask of one own token each is not one for all queries") {
  const auto all_to_all = GENERATE(false, true);
  const auto P = processes();
  torch::manual_seed(1);
  const auto x = torch::randn({1, kHeads, P, kDim}, torch::kDouble);
  const auto mask = torch::rand({P, P}).gt(0.5);
  const auto own = distributed::own_tokens(x, 2, group());
  CHECK_THAT(
      attend(
          all_to_all,
          {own, own, own},
          FuncOptions().mask(distributed::own_tokens(mask, 0, group())),
          TokenLayout::kContiguous),
      IsAsOfOne(distributed::own_tokens(
          functional::scaled_dot_product_attention(
              x, x, x, FuncOptions().mask(mask)),
          2,
          group())));
}

TEST_CASE("A process is sent no keys that it does not see") {
  const auto P = processes();
  const auto whole = wholes(torch::kDouble, kHeads);
  const auto own = [&](const torch::Tensor& x) {
    return distributed::own_tokens(x, 2, group());
  };
  const Tensors parts{own(whole.query), own(whole.key), own(whole.value)};
  const auto bytes = [&](const FuncOptions& options) {
    distributed::reset_traffic();
    attend(false, parts, options, TokenLayout::kContiguous);
    return distributed::traffic().bytes - 1016 * (P - 1);
  };
  constexpr int64_t kToken = kBatch * kHeads * (kDim + kValueDim) * 8;
  const auto of_each = kTokens / P * kToken;
  CHECK(bytes(FuncOptions()) == of_each * (P - 1));
  CHECK(
      bytes(FuncOptions().causal(true)) ==
      of_each * (P - 1 - group()->getRank()));
  // The last two tokens of a process, for the next one.
  const bool is_last = group()->getRank() == P - 1;
  CHECK(
      bytes(FuncOptions().causal(true).window(3)) ==
      (is_last ? 0 : 2 * kToken));
}

TEST_CASE("What the ring cannot do it says") {
  const auto whole = wholes(torch::kDouble, kHeads);
  const auto ring = [&](const FuncOptions& options) {
    return distributed::ring_attention(
        whole.query, whole.key, whole.value, group(), options);
  };
  for (const auto dropout :
       {-0.1, 1.5, std::numeric_limits<double>::quiet_NaN()}) {
    THROWS_WITH(ring(FuncOptions().dropout(dropout)), "dropout");
  }
  THROWS_WITH(
      ring(FuncOptions().query_offsets(torch::tensor({0, 0}))),
      "expected no query_offsets");
  THROWS_WITH(
      ring(FuncOptions().cu_seqlens(torch::tensor({0, 1}))),
      "expected no cu_seqlens");
  THROWS_WITH(
      ring(FuncOptions().scores([](const auto& scores) { return scores; })),
      "expected no function `scores`");
  THROWS_WITH(
      ring(FuncOptions().mask(
          torch::zeros({kTokens, kTokens + 1}, torch::kBool))),
      "broadcasts to (B, H, T/P, S)");
  THROWS_WITH(
      distributed::ring_attention(
          whole.query.narrow(2, 0, 1),
          whole.key.narrow(2, 0, 1),
          whole.value.narrow(2, 0, 1),
          group(),
          {},
          SequenceOptions().layout(TokenLayout::kBalanced)),
      "twice the number of processes");
}

} // namespace sequence_parallel_test

} // namespace torch_attention::testing
