#include <random/bounds.h>
#include <random/magnitudes.h>
#include <random/problem.h>

#include <cpu/attention_by_definition.h>
#include <torch/csrc/autograd/autograd.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <vector>

// Computes an attention by both kernels, in float64, by plain loops and by
// finite differences.
namespace torch_attention::random {

namespace {

template <typename X>
cpu::Heads<const X> heads_of(const torch::Tensor& x) {
  return {x.const_data_ptr<X>(), {x.stride(0), x.stride(1), x.stride(2)}};
}

template <typename X>
cpu::Scores<const X> scores_of(const torch::Tensor& x) {
  return {
      x.const_data_ptr<X>(),
      x.stride(0),
      x.stride(1),
      x.stride(2),
      x.stride(3)};
}

torch::Tensor tensor_of(const std::vector<double>& numbers, Sizes sizes) {
  return torch::tensor(numbers, torch::kDouble).view(sizes);
}

/// Returns output, gradients of query, key and value (B, heads, tokens,
/// features), and those of slopes and sinks (H), computed by plain loops.
Tensors by_definition(const Problem& problem) {
  auto x = problem.inputs(problem.bases);
  const auto B = x[0].size(0);
  for (auto& each : x) {
    auto sizes = each.sizes().vec();
    sizes[0] = B;
    if (!problem.options.enable_gqa()) {
      sizes[1] = x[0].size(1);
    }
    each = each.expand(sizes).contiguous();
  }
  const auto H = x[0].size(1);
  const auto G = x[1].size(1);
  const auto T = x[0].size(2);
  const auto S = x[1].size(2);
  const auto D = x[0].size(3);
  const auto E = x[2].size(3);
  cpu::AttentionArguments<double> a;
  a.batch_size = B;
  a.num_heads = H;
  a.num_kv_heads = G;
  a.num_queries = T;
  a.num_keys = S;
  a.head_dim = D;
  a.value_dim = E;
  a.query = heads_of<double>(x[0]);
  a.key = heads_of<double>(x[1]);
  a.value = heads_of<double>(x[2]);
  const auto& options = problem.options;
  a.rule = options.rule();
  const auto given = [](const torch::Tensor& counts) {
    return counts.defined() ? counts.contiguous() : counts;
  };
  const auto lengths = given(options.key_lengths());
  const auto offsets = given(options.query_offsets());
  a.key_lengths =
      lengths.defined() ? lengths.const_data_ptr<int64_t>() : nullptr;
  a.query_offsets =
      offsets.defined() ? offsets.const_data_ptr<int64_t>() : nullptr;
  torch::Tensor mask;
  if (options.mask().defined()) {
    mask = options.mask().expand({B, H, T, S});
    a.mask = scores_of<bool>(mask);
  }
  torch::Tensor bias;
  if (problem.has_bias) {
    bias = problem.bias(problem.bases).expand({B, H, T, S});
    a.bias = scores_of<double>(bias);
  }
  if (problem.has_slopes) {
    a.alibi_slopes = problem.slopes(problem.bases).const_data_ptr<double>();
  }
  if (problem.has_sinks) {
    a.sinks = problem.sinks(problem.bases).const_data_ptr<double>();
  }
  const auto grad = problem.grad_output.contiguous();
  const auto found =
      cpu::testing::attention_by_definition(a, heads_of<double>(grad));
  return {
      tensor_of(found.output, {B, H, T, E}),
      tensor_of(found.grad_query, {B, H, T, D}),
      tensor_of(found.grad_key, {B, G, S, D}),
      tensor_of(found.grad_value, {B, G, S, E}),
      tensor_of(found.grad_slopes, {H}),
      tensor_of(found.grad_sinks, {H})};
}

void check_by_definition(const Problem& problem) {
  const auto expected = by_definition(problem);
  const auto m = magnitudes_of(problem);
  for (const auto kernel : {Kernel::kReference, Kernel::kFused}) {
    // Gradients of the tensors in memory, from those of the loops.
    const auto leaves = problem.leaves(torch::kDouble);
    const auto inputs = problem.inputs(leaves);
    Tensors grads;
    for (size_t i = 0; i < 3; ++i) {
      auto grad = expected[i + 1];
      grads.push_back(grad.sum_to_size(inputs[i].sizes()));
    }
    const auto bases = Tensors(
        leaves.begin(),
        leaves.begin() + (problem.layouts[0].text == "packed" ? 1 : 3));
    const auto wanted = torch::autograd::grad(inputs, bases, grads);
    const auto found = compute(problem, torch::kDouble, kernel);
    check_same(
        c10::str("output by loops, ", kernel), found[0], expected[0], m.value);
    for (size_t i = 0; i < wanted.size(); ++i) {
      check_same(
          c10::str("gradient ", i + 1, " by loops, ", kernel),
          found[i + 1],
          wanted[i],
          bound_of(problem, m, i + 1).magnitude);
    }
    if (!problem.wants_all) {
      continue;
    }
    const auto sums =
        std::sqrt(static_cast<double>(problem.grad_output.numel()));
    if (problem.has_slopes) {
      const auto span = inputs[0].size(2) + inputs[1].size(2);
      check_same(
          "gradient of slopes",
          found[found.size() - (problem.has_sinks ? 2 : 1)],
          expected[4],
          m.grad_score * sums * static_cast<double>(span));
    }
    if (problem.has_sinks) {
      check_same(
          "gradient of sinks", found.back(), expected[5], m.grad_score * sums);
    }
  }
}

/// Compares the gradients with the change of `sum(grad_output * output)` along
/// a direction of all tensors that have a gradient.
void check_differences(const Problem& problem) {
  constexpr double kStep = 1e-6;
  const auto leaves = problem.leaves(torch::kDouble);
  auto low = problem.leaves(torch::kDouble);
  auto high = problem.leaves(torch::kDouble);
  const auto found = compute(problem, torch::kDouble, Kernel::kFused);
  double expected = 0;
  double size = 1;
  size_t next = 1;
  {
    const torch::NoGradGuard no_grad;
    for (size_t i = 0; i < leaves.size(); ++i) {
      if (!leaves[i].requires_grad()) {
        continue;
      }
      const auto direction = torch::randn(leaves[i].sizes(), torch::kDouble);
      low[i].add_(direction, -kStep);
      high[i].add_(direction, kStep);
      const auto change = direction * found[next++];
      expected += change.sum().item<double>();
      size += change.abs().sum().item<double>();
    }
    const auto value = [&](const Tensors& bases) {
      return (problem.attend(bases, Kernel::kFused) * problem.grad_output)
          .sum()
          .item<double>();
    };
    const auto difference = (value(high) - value(low)) / (2 * kStep);
    const auto m = magnitudes_of(problem);
    const auto noise = 1e-9 * (1 + m.value) * (1 + m.scores) *
        std::sqrt(static_cast<double>(problem.grad_output.numel() + 1));
    if (!(std::abs(difference - expected) <= 1e-5 * size + noise)) {
      fail("finite difference ", difference, ", gradient ", expected);
    }
  }
}

/// Compares a function that does what options do with the kernel that has them.
void check_function(const Problem& problem) {
  const auto fused = compute(problem, torch::kDouble, Kernel::kFused);
  const auto reference = compute(problem, torch::kDouble, Kernel::kReference);
  const auto by_function = compute(
      problem,
      torch::kDouble,
      Kernel::kReference,
      &Problem::attend_by_function);
  const auto m = magnitudes_of(problem);
  for (size_t i = 0; i < fused.size(); ++i) {
    check_close(
        name_of(i) + " by a function",
        by_function[i],
        reference[i],
        fused[i],
        bound_of(problem, m, i));
  }
}

void check_second_gradients(const Problem& problem) {
  const auto compute_second = [&](Kernel kernel) {
    const auto leaves = problem.leaves(torch::kDouble);
    const auto wanted = problem.wanted(leaves);
    const auto first = torch::autograd::grad(
        {problem.attend(leaves, kernel)},
        wanted,
        {problem.grad_output},
        /*retain_graph=*/true,
        /*create_graph=*/true);
    torch::Tensor sum = torch::zeros({}, torch::kDouble);
    for (const auto& gradient : first) {
      sum = sum + gradient.pow(2).sum();
    }
    return torch::autograd::grad({sum}, wanted, {}, {}, false, true);
  };
  const auto fused = compute_second(Kernel::kFused);
  const auto reference = compute_second(Kernel::kReference);
  for (size_t i = 0; i < fused.size(); ++i) {
    if (fused[i].defined() != reference[i].defined()) {
      fail("second gradient ", i + 1, " is there by one kernel only");
    }
    if (fused[i].defined()) {
      check_same(
          c10::str("second gradient ", i + 1),
          fused[i],
          reference[i],
          /*magnitude=*/1 + largest(reference[0]),
          1e-8);
    }
  }
}

} // namespace

void check_attention(Random& random) {
  const auto problem = make_problem(random);
  random.describe(problem.text());
  const auto fused = compute(problem, problem.dtype, Kernel::kFused);
  const auto reference = compute(problem, problem.dtype, Kernel::kReference);
  const auto exact = compute(problem, torch::kDouble, Kernel::kReference);
  const auto m = magnitudes_of(problem);
  for (size_t i = 0; i < exact.size(); ++i) {
    check_close(
        name_of(i), fused[i], reference[i], exact[i], bound_of(problem, m, i));
  }
}

void check_by_loops(Random& random) {
  const auto problem = make_small_problem(random);
  random.describe(problem.text());
  if (problem.grad_output.numel() > 0) {
    check_by_definition(problem);
  }
}

void check_small_attention(Random& random) {
  const auto problem = make_small_problem(random);
  random.describe(problem.text());
  if (problem.grad_output.numel() == 0) {
    return;
  }
  check_by_definition(problem);
  check_differences(problem);
  check_function(problem);
  check_second_gradients(problem);
}

void check_dropout(Random& random) {
  constexpr int64_t kRuns = 64;
  auto problem = make_small_problem(random);
  random.describe(problem.text());
  const auto dropout = random.one_of({0.1, 0.3, 0.5});
  const auto seed = static_cast<uint64_t>(random.integer(0, 1 << 30));
  const torch::NoGradGuard no_grad;
  if (problem.grad_output.numel() == 0) {
    return;
  }
  const auto exact = problem.attend(problem.bases, Kernel::kReference);
  const auto inputs = problem.inputs(problem.bases);
  // The variance of the sum of the weights that are kept, by squares.
  const auto weights =
      std::get<1>(functional::scaled_dot_product_attention_with_weights(
          inputs[0], inputs[1], inputs[2], problem.all_options(problem.bases)));
  auto values = inputs[2].pow(2);
  if (values.size(1) != weights.size(1)) {
    values = values.repeat_interleave(weights.size(1) / values.size(1), 1);
  }
  const auto deviation =
      (torch::matmul(weights.pow(2), values) * dropout / (1 - dropout)).sqrt() /
      std::sqrt(static_cast<double>(kRuns));
  problem.options.dropout(dropout);
  const auto run = [&](uint64_t with_seed) {
    torch::manual_seed(with_seed);
    return problem.attend(problem.bases, Kernel::kFused);
  };
  if (!run(seed).equal(run(seed))) {
    fail("dropout differs under one seed");
  }
  auto mean = torch::zeros_like(exact);
  for (int64_t i = 0; i < kRuns; ++i) {
    mean += run(seed + static_cast<uint64_t>(i)) / kRuns;
  }
  // Allows eight deviations of a sum of many numbers, and some more: a few
  // weights have no normal distribution, and dropout is rounded to 1 / 65536.
  const auto excess =
      ((mean - exact).abs() - 8 * deviation - 1e-4 * (1 + exact.abs()))
          .max()
          .item<double>();
  if (!(excess <= 0)) {
    fail("mean under dropout ", dropout, " off by ", excess);
  }
}

} // namespace torch_attention::random
