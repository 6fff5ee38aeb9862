#include <distributed/support.h>

#include <torch_attention/distributed/sequence_parallel.h>
#include <torch_attention/torch_attention.h>

#include <memory>
#include <utility>
#include <vector>

namespace torch_attention::testing {

namespace context_test {

using distributed::SequenceOptions;
using distributed::TokenLayout;

constexpr int64_t kBatch = 2;
/// Divisible by all numbers of processes, and their pieces by what dropout
/// asks.
constexpr int64_t kHeads = 24;
constexpr int64_t kQueries = 96;
constexpr int64_t kKeys = 192;
constexpr int64_t kIn = 10;
constexpr int64_t kContext = 9;
constexpr uint64_t kDropoutSeed = 3;

int64_t few_key_heads() {
  return processes() == 3 ? 3 : 4;
}

CrossAttentionOptions cross_options() {
  return CrossAttentionOptions(kIn, kContext, 14, kHeads)
      .head_dim(6)
      .value_dim(5)
      .qkv_bias(true)
      .num_kv_heads(few_key_heads())
      .softcap(3)
      .qk_norm(HeadNormOptions());
}

template <typename Module>
Module copy_of(const Module& module) {
  return Module(
      std::dynamic_pointer_cast<typename Module::Impl>(module->clone()));
}

/// The output and its gradients: of x, of the context and of all parameters.
std::vector<torch::Tensor> results(
    CrossAttention& module,
    const torch::Tensor& x,
    const torch::Tensor& context,
    const ForwardOptions& call,
    const torch::Tensor& gradient) {
  const auto dtype = module->W_query->weight.scalar_type();
  const auto leaf = [&](const torch::Tensor& tensor) {
    return tensor.detach().to(dtype).clone().requires_grad_();
  };
  std::vector<torch::Tensor> inputs = {leaf(x), leaf(context)};
  torch::manual_seed(kDropoutSeed);
  const auto output = module->forward(inputs[0], inputs[1], call);
  for (const auto& parameter : module->parameters()) {
    inputs.push_back(parameter);
  }
  auto all = torch::autograd::grad({output}, inputs, {gradient.to(dtype)});
  all.insert(all.begin(), output.detach());
  return all;
}

/// Compares with the whole module, of which `module` is a copy that shares its
/// tokens.
void check_same(
    CrossAttention& whole,
    CrossAttention& module,
    const ForwardOptions& call,
    int64_t num_keys,
    const SequenceOptions& sequence) {
  const auto dtype = whole->W_query->weight.scalar_type();
  const auto own = [&](const torch::Tensor& tensor, int64_t dim) {
    return distributed::own_tokens(tensor, dim, group(), sequence.layout());
  };
  torch::manual_seed(6);
  const auto x = torch::randn({kBatch, kQueries, kIn}, dtype);
  const auto context = torch::randn({kBatch, num_keys, kContext}, dtype);
  const auto gradient = torch::randn({kBatch, kQueries, 14}, dtype);
  const auto rows = [&](const torch::Tensor& scores) {
    return scores.defined() && scores.size(-2) != 1
        ? own(scores, scores.dim() - 2)
        : scores;
  };
  auto own_call = call;
  own_call.mask(rows(call.mask())).bias(rows(call.bias()));
  auto parts = results(
      module,
      own(x, 1),
      sequence.whole_context() ? context : own(context, 1),
      own_call,
      own(gradient, 1));
  const auto expected = results(whole, x, context, call, gradient);
  auto exact_module = copy_of(whole);
  exact_module->to(torch::kDouble);
  auto exact_call = call;
  if (call.bias().defined()) {
    exact_call.bias(call.bias().to(torch::kDouble));
  }
  const auto exact = results(exact_module, x, context, exact_call, gradient);
  for (size_t i = 0; i < parts.size(); ++i) {
    INFO("result " << i);
    const bool is_split = i < 2 || (i == 2 && !sequence.whole_context());
    if (!is_split) {
      std::vector<torch::Tensor> sum = {parts[i]};
      group()->allreduce(sum)->wait();
    }
    CHECK_THAT(
        parts[i],
        IsAsOfOne(
            is_split ? own(expected[i], 1) : expected[i],
            largest(expected[i] - exact[i])));
  }
}

TEST_CASE("CrossAttention sees the context of all processes") {
  const auto all_to_all = GENERATE(false, true);
  const auto whole_context = GENERATE(false, true);
  const auto layout =
      GENERATE(TokenLayout::kContiguous, TokenLayout::kBalanced);
  const auto dtype = GENERATE(torch::kFloat, torch::kDouble);
  const auto sequence = SequenceOptions()
                            .layout(layout)
                            .all_to_all(all_to_all)
                            .whole_context(whole_context);
  // A whole one need not be divisible.
  const auto S = whole_context ? int64_t{13} : kKeys;
  torch::manual_seed(5);
  CrossAttention whole(cross_options().dropout(0.3));
  whole->to(dtype);
  auto module = copy_of(whole);
  CHECK(distributed::sequence_parallel(*module, group(), sequence) == 1);
  const std::vector<std::pair<const char*, ForwardOptions>> calls = {
      {"plain", ForwardOptions()},
      {"lengths", ForwardOptions().key_lengths(torch::tensor({11, 5}))},
      {"no key", ForwardOptions().key_lengths(torch::tensor({0, 5}))},
      {"padding",
       ForwardOptions().key_padding_mask(torch::rand({kBatch, S}).gt(0.5))},
      {"mask",
       ForwardOptions().mask(torch::rand({kBatch, 1, kQueries, S}).gt(0.5))},
      {"bias",
       ForwardOptions().bias(torch::randn({1, kHeads, kQueries, S}, dtype))},
  };
  const auto check = [&](const char* name, const ForwardOptions& call) {
    INFO(
        (all_to_all ? "all to all, " : "ring, ")
        << (whole_context ? "whole, " : "split, ")
        << (layout == TokenLayout::kBalanced ? "balanced, " : "contiguous, ")
        << dtype << ", " << name);
    check_same(whole, module, call, S, sequence);
  };
  check("dropout", {});
  whole->eval();
  module->eval();
  for (const auto& [name, call] : calls) {
    check(name, call);
  }
}

TEST_CASE("A whole context is not sent, and gives its weights") {
  torch::manual_seed(5);
  CrossAttention whole(cross_options());
  whole->to(torch::kDouble);
  auto module = copy_of(whole);
  distributed::sequence_parallel(
      *module, group(), SequenceOptions().whole_context(true));
  const auto x = torch::randn({kBatch, kQueries, kIn}, torch::kDouble);
  const auto context = torch::randn({kBatch, 13, kContext}, torch::kDouble);
  const auto own = [&](const torch::Tensor& tensor, int64_t dim) {
    return distributed::own_tokens(tensor, dim, group());
  };
  distributed::reset_traffic();
  module->forward(own(x, 1), context);
  CHECK(distributed::traffic().bytes == 1016 * (processes() - 1));
  const auto [output, weights] =
      module->forward_with_weights(own(x, 1), context);
  const auto [expected, expected_weights] =
      whole->forward_with_weights(x, context);
  CHECK_THAT(output, IsAsOfOne(own(expected, 1)));
  CHECK_THAT(weights, IsAsOfOne(own(expected_weights, 2)));
  // Scores are shared with no other process.
  const auto call =
      ForwardOptions().scores([](const auto& scores) { return 2 * scores; });
  CHECK_THAT(
      std::get<0>(module->forward_with_weights(own(x, 1), context, call)),
      IsAsOfOne(
          own(std::get<0>(whole->forward_with_weights(x, context, call)), 1)));
}

TEST_CASE("What CrossAttention cannot do with tokens it says in all") {
  if (processes() == 1) {
    return;
  }
  CrossAttention module(cross_options());
  distributed::sequence_parallel(*module, group());
  const auto x = torch::ones({kBatch, 4, kIn});
  const auto context = torch::ones({kBatch, 6, kContext});
  const bool is_last = group()->getRank() == processes() - 1;
  const auto other = [&](const torch::Tensor& last_x,
                         const torch::Tensor& last_context) {
    is_last ? module->forward(last_x, last_context)
            : module->forward(x, context);
  };
  // Told in the others, too.
  THROWS_WITH(other(torch::ones({kBatch, 4, kIn + 1}), context), "d_in = 10");
  THROWS_WITH(other(x, torch::ones({1, 6, kContext})), "as many sequences");
  THROWS_WITH(other(x, torch::ones({kBatch, 5, kContext})), "key Float [2, ");
  THROWS_WITH(
      module->forward_with_weights(x, context), "needs the whole context");
  THROWS_WITH(
      module->forward(
          x,
          context,
          ForwardOptions().mask(torch::zeros({4, 6}, torch::kBool))),
      "mask");
  THROWS_WITH(
      distributed::ring_attention(
          torch::ones({1, 2, 4, 8}),
          torch::ones({1, 2, 6, 8}),
          torch::ones({1, 2, 6, 8}),
          group(),
          functional::ScaledDotProductAttentionFuncOptions().causal(true)),
      "as many keys as queries");
}

/// The tokens of a text, and what a step of decoding takes of them.
struct Step {
  int64_t begin;
  int64_t end;
  DecodeOptions call;
};

/// Decodes by both modules, of which the second shares the keys.
void check_decode(
    MultiHeadAttention& whole,
    MultiHeadAttention& module,
    const std::vector<Step>& steps) {
  whole->eval();
  module->eval();
  const auto dtype = whole->W_query->weight.scalar_type();
  auto cache = module->make_cache(kBatch);
  auto cache_of_whole = whole->make_cache(kBatch);
  torch::manual_seed(6);
  const auto x =
      torch::randn({kBatch, whole->options.context_length(), kIn}, dtype);
  for (const auto& step : steps) {
    INFO("tokens from " << step.begin << " to " << step.end);
    const auto tokens = x.slice(1, step.begin, step.end);
    auto output = module->decode(tokens, cache, step.call);
    auto expected = whole->decode(tokens, cache_of_whole, step.call);
    if (step.call.new_lengths().defined()) {
      // The output for padding means nothing.
      const auto counts = step.call.new_lengths();
      const auto T = step.end - step.begin;
      const auto places = torch::arange(T);
      const auto padding =
          (step.call.left_padded() ? places.lt(T - counts.unsqueeze(1))
                                   : places.ge(counts.unsqueeze(1)))
              .unsqueeze(-1);
      output = output.masked_fill(padding, 0);
      expected = expected.masked_fill(padding, 0);
    }
    CHECK_THAT(output, IsAsOfOne(expected));
    CHECK(cache.lengths().equal(cache_of_whole.lengths()));
  }
}

TEST_CASE("Processes decode with the keys that each of them has") {
  const auto dtype = GENERATE(torch::kFloat, torch::kDouble);
  const auto options = [] {
    return MultiHeadAttentionOptions(kIn, 14, 400, kHeads)
        .head_dim(6)
        .value_dim(5)
        .qkv_bias(true)
        .num_kv_heads(few_key_heads());
  };
  torch::manual_seed(4);
  const auto bias = torch::randn({1, kHeads, 2, 11}, dtype);
  // A prompt, one token, several.
  const std::vector<Step> plain = {
      {0, 9, {}}, {9, 10, {}}, {10, 11, {}}, {11, 14, {}}};
  const std::vector<Step> padded = {
      {0, 9, DecodeOptions(torch::tensor({9, 4}))},
      {9, 10, {}},
      {10, 13, DecodeOptions(torch::tensor({1, 3}))},
      {13, 14, {}}};
  const std::vector<Step> left_padded = {
      {0, 9, DecodeOptions(torch::tensor({2, 9})).left_padded(true)},
      {9, 10, {}}};
  const std::vector<Step> with_bias = {
      {0, 9, {}}, {9, 11, DecodeOptions().bias(bias)}};
  // In more than one piece.
  const std::vector<Step> long_prompt = {{0, 300, {}}, {300, 301, {}}};
  struct Variant {
    const char* name;
    MultiHeadAttentionOptions options;
    const std::vector<Step>& steps;
  };
  for (const auto& variant : std::vector<Variant>{
           {"plain", options(), plain},
           {"padded", options().rotary(RotaryOptions()).alibi(true), padded},
           {"left padded", options().rotary(RotaryOptions()), left_padded},
           {"bias", options().alibi(true), with_bias},
           {"window", options().window(4).sinks(true), plain},
           {"padded window", options().window(3).alibi(true), padded},
           {"chunk", options().chunk(5).softcap(2), padded},
           {"norm",
            options()
                .qk_norm(HeadNormOptions())
                .output_gate(OutputGateOptions())
                .value_norm_eps(1e-6),
            plain},
           {"dynamic rotation",
            options().rotary(RotaryOptions()
                                 .scaling(RotaryScaling::kDynamic)
                                 .factor(4)
                                 .original_context_length(10)),
            plain},
           {"long prompt",
            options().window(290).alibi(true).sinks(true),
            long_prompt},
       }) {
    INFO(variant.name << ", " << dtype);
    torch::manual_seed(5);
    MultiHeadAttention whole(variant.options);
    if (whole->sinks.defined()) {
      const torch::NoGradGuard no_grad;
      whole->sinks.normal_();
    }
    whole->to(dtype);
    auto module = copy_of(whole);
    distributed::sequence_parallel(*module, group());
    check_decode(whole, module, variant.steps);
  }
}

TEST_CASE("A cache of some keys is cut, reordered and copied as a whole one") {
  torch::manual_seed(5);
  MultiHeadAttention whole(MultiHeadAttentionOptions(kIn, 14, 64, 2));
  whole->to(torch::kDouble);
  whole->eval();
  auto module = copy_of(whole);
  distributed::sequence_parallel(*module, group());
  const auto x = torch::randn({kBatch, 20, kIn}, torch::kDouble);
  auto cache = module->make_cache(kBatch);
  auto cache_of_whole = whole->make_cache(kBatch);
  const auto step = [&](int64_t begin, int64_t end) {
    const auto tokens = x.slice(1, begin, end);
    distributed::reset_traffic();
    CHECK_THAT(
        module->decode(tokens, cache),
        IsAsOfOne(whole->decode(tokens, cache_of_whole)));
    // Two heads of values of size 7, and what they are joined by.
    const auto bytes = kBatch * 2 * (end - begin) * (7 + 2) * 8;
    CHECK(
        distributed::traffic().bytes ==
        (processes() == 1 ? 0 : (processes() - 1) * (1016 + bytes)));
  };
  step(0, 10);
  const auto P = processes();
  CHECK(cache.keys().size(2) == (10 + P - 1 - group()->getRank()) / P);
  cache.truncate(torch::tensor({7, 4}));
  cache_of_whole.truncate(torch::tensor({7, 4}));
  step(10, 12);
  cache.reorder(torch::tensor({1, 1}));
  cache_of_whole.reorder(torch::tensor({1, 1}));
  step(12, 13);
  cache = cache.clone();
  step(13, 15);
  cache.reset();
  cache_of_whole.reset();
  step(15, 16);
}

TEST_CASE("Calls of decode that differ between processes are told") {
  if (processes() == 1) {
    return;
  }
  const bool is_last = group()->getRank() == processes() - 1;
  MultiHeadAttention module(MultiHeadAttentionOptions(kIn, 14, 64, 2));
  module->eval();
  auto cache_of_whole = module->make_cache(kBatch);
  auto whole = copy_of(module);
  distributed::sequence_parallel(*module, group());
  auto cache = module->make_cache(kBatch);
  const auto x = torch::ones({kBatch, 4, kIn});
  module->decode(x, cache);
  THROWS_WITH(
      module->decode(is_last ? x.slice(1, 0, 3) : x, cache),
      "input Float of shape [2, 3, 10]");
  // All are told as well what only one process sees.
  THROWS_WITH(
      module->decode(is_last ? x.slice(2, 0, 3) : x, cache), "d_in = 10");
  CHECK(cache.lengths().equal(torch::tensor({4, 4})));
  if (is_last) {
    cache.truncate(3);
  }
  THROWS_WITH(module->decode(x, cache), "of lengths [3, 3]");
  cache.truncate(3);
  module->decode(x, cache);
  THROWS_WITH(
      module->decode(x, cache_of_whole), "expected a cache of num_parts");
  THROWS_WITH(whole->decode(x, cache), "expected a cache of num_parts");
}

TEST_CASE("Processes decode with the context that each of them has") {
  const auto whole_context = GENERATE(false, true);
  const auto layout =
      GENERATE(TokenLayout::kContiguous, TokenLayout::kBalanced);
  const auto dtype = GENERATE(torch::kFloat, torch::kDouble);
  const auto S = whole_context ? int64_t{13} : kKeys;
  torch::manual_seed(5);
  CrossAttention whole(cross_options());
  whole->to(dtype);
  whole->eval();
  auto module = copy_of(whole);
  distributed::sequence_parallel(
      *module,
      group(),
      SequenceOptions().layout(layout).whole_context(whole_context));
  const auto x = torch::randn({kBatch, 3, kIn}, dtype);
  const auto context = torch::randn({kBatch, S, kContext}, dtype);
  const auto own = whole_context
      ? context
      : distributed::own_tokens(context, 1, group(), layout);
  for (const auto& lengths :
       {torch::Tensor(), torch::tensor({S, int64_t{5}})}) {
    const auto cache = module->make_cache(own, lengths);
    const auto cache_of_whole = whole->make_cache(context, lengths);
    for (const auto& call : {
             ForwardOptions(),
             ForwardOptions().key_lengths(torch::tensor({7, 3})),
             ForwardOptions().key_padding_mask(
                 torch::rand({kBatch, S}).gt(0.5)),
             ForwardOptions().mask(torch::rand({3, S}).gt(0.5)),
             ForwardOptions().bias(torch::randn({1, kHeads, 3, S}, dtype)),
         }) {
      CHECK_THAT(
          module->decode(x, cache, call),
          IsAsOfOne(whole->decode(x, cache_of_whole, call)));
    }
  }
}

} // namespace context_test

} // namespace torch_attention::testing
