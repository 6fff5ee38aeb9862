#include <random/magnitudes.h>
#include <random/problem.h>

#include <torch/csrc/autograd/autograd.h>

#include <array>
#include <cmath>
#include <limits>
#include <string>
#include <utility>

// NaN and infinities reach the queries that see them, and no others.
namespace torch_attention::random {

namespace {

using Three = std::array<torch::Tensor, 3>;

/// Returns the output and its gradients with respect to query, key and value.
std::array<torch::Tensor, 4> compute(
    const Problem& problem,
    const Tensors& bases,
    Kernel kernel) {
  auto options = problem.all_options(bases);
  auto inputs = problem.inputs(bases);
  for (auto& x : inputs) {
    x = x.detach().requires_grad_();
  }
  const auto output = functional::scaled_dot_product_attention(
      inputs[0], inputs[1], inputs[2], options.kernel(kernel));
  const auto gradients =
      torch::autograd::grad({output}, inputs, {problem.grad_output});
  return {output.detach(), gradients[0], gradients[1], gradients[2]};
}

/// Returns true where a query sees a key, (..., heads, T, S). With equal scores
/// all keys that are seen have weights.
torch::Tensor visible(const Problem& problem) {
  const auto bias = problem.bias(problem.bases);
  auto options = problem.options;
  options.scale(1).softcap(std::nullopt);
  if (bias.defined()) {
    options.bias(torch::where(
        bias.isneginf(),
        torch::full({}, -INFINITY, bias.options()),
        torch::zeros({}, bias.options())));
  }
  auto inputs = problem.inputs(problem.bases);
  for (auto& x : inputs) {
    x = torch::zeros(x.sizes(), torch::kDouble);
  }
  const auto weights =
      std::get<1>(functional::scaled_dot_product_attention_with_weights(
          inputs[0], inputs[1], inputs[2], options));
  return weights > 0;
}

/// Repeats (..., S) of the heads of keys for the heads of queries.
torch::Tensor for_queries(
    const Problem& problem,
    torch::Tensor of_keys,
    const torch::Tensor& queries) {
  if (problem.options.enable_gqa()) {
    of_keys =
        of_keys.repeat_interleave(queries.size(-2) / of_keys.size(-2), -2);
  }
  auto sizes = queries.sizes().vec();
  sizes.back() = of_keys.size(-1);
  return of_keys.expand(sizes);
}

/// Reduces (..., S) of the heads of queries to those of keys: true where any of
/// the heads and sequences that share a key has true.
torch::Tensor for_keys(
    const Problem& problem,
    torch::Tensor of_queries,
    const torch::Tensor& keys) {
  if (problem.options.enable_gqa()) {
    auto sizes = of_queries.sizes().vec();
    const auto heads = sizes.end() - 2;
    const auto G = keys.size(-2);
    const auto group = *heads / G;
    *heads = G;
    sizes.insert(heads + 1, group);
    of_queries = of_queries.reshape(sizes).any(-2);
  }
  return of_queries.to(torch::kDouble).sum_to_size(keys.sizes()) > 0;
}

/// Checks that rows other than `reached` are as they were, but for rounding.
void check_rows(
    const std::string& what,
    const torch::Tensor& found,
    const torch::Tensor& clean,
    const torch::Tensor& reached,
    const Bound& bound) {
  const auto zero = torch::zeros({}, torch::kDouble);
  const auto rest = [&](const torch::Tensor& x) {
    return torch::where(reached.unsqueeze(-1), zero, x.to(torch::kDouble));
  };
  const auto error = distance(rest(found), rest(clean));
  const auto allowed = 8 * bound.rounding();
  if (!(error <= allowed)) {
    fail(what, " changes by what is hidden: ", error, ", allowed ", allowed);
  }
}

} // namespace

void check_non_finite(Random& random) {
  const auto problem = make_problem(random);
  const auto number = random.one_of(
      {std::numeric_limits<double>::quiet_NaN(),
       std::numeric_limits<double>::quiet_NaN(),
       std::numeric_limits<double>::infinity(),
       -std::numeric_limits<double>::infinity()});
  random.describe(c10::str(number, " in ", problem.text()));
  auto spoiled = problem.bases;
  for (size_t i = 0; i + problem.num_added() < spoiled.size(); ++i) {
    spoiled[i] = spoiled[i].clone(torch::MemoryFormat::Contiguous);
    const auto numel = spoiled[i].numel();
    const auto places = random.once_in(3) ? 0 : random.integer(1, 4);
    for (int64_t n = 0; n < places && numel > 0; ++n) {
      spoiled[i].view(-1)[random.integer(0, numel - 1)] = number;
    }
  }
  if (problem.grad_output.numel() == 0) {
    return;
  }
  Three has;
  const auto inputs = problem.inputs(spoiled);
  for (size_t i = 0; i < has.size(); ++i) {
    has[i] = inputs[i].isfinite().logical_not().any(-1);
  }
  const auto sees = visible(problem);
  auto queries = problem.grad_output.select(-1, 0);
  has[0] = has[0].expand(queries.sizes());
  const auto in_keys = for_queries(problem, has[1], queries)
                           .logical_or(for_queries(problem, has[2], queries));
  // The rows of output and gradient of query that must be, or may be, spoiled.
  const auto reached = sees.logical_and(in_keys.unsqueeze(-2))
                           .any(-1)
                           .logical_or(has[0].logical_and(sees.any(-1)));
  const auto seen_by_reached = sees.logical_and(reached.unsqueeze(-1)).any(-2);
  const auto m = magnitudes_of(problem);
  for (const auto kernel : {Kernel::kFused, Kernel::kReference}) {
    const auto found = compute(problem, spoiled, kernel);
    const auto clean = compute(problem, problem.bases, kernel);
    const auto name = [&](const std::string& what) {
      return c10::str(what, " by ", kernel);
    };
    if (std::isnan(number) &&
        !found[0].isnan().any(-1).logical_and(reached).equal(reached)) {
      fail(name("output"), " has no NaN where one is seen");
    }
    const auto check = [&](size_t result, const torch::Tensor& rows) {
      check_rows(
          name(name_of(result)),
          found[result],
          clean[result],
          rows,
          bound_of(problem, m, result));
    };
    const auto row_of = [&](size_t input) {
      return inputs[input].select(-1, 0);
    };
    check(0, reached);
    check(1, reached.to(torch::kDouble).sum_to_size(row_of(0).sizes()) > 0);
    check(2, for_keys(problem, seen_by_reached, row_of(1)));
    check(3, for_keys(problem, seen_by_reached, row_of(2)));
  }
}

} // namespace torch_attention::random
