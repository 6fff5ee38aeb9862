#include <random/magnitudes.h>

#include <algorithm>
#include <cmath>

namespace torch_attention::random {

namespace {

double largest_finite(const torch::Tensor& x) {
  return largest(torch::nan_to_num(x.to(torch::kDouble), 0, 0, 0));
}

double copies_of(const torch::Tensor& x) {
  double copies = 1;
  for (int64_t i = 0; i < x.dim(); ++i) {
    copies *= x.stride(i) == 0 ? static_cast<double>(x.size(i)) : 1.0;
  }
  return copies;
}

} // namespace

Magnitudes magnitudes_of(const Problem& problem) {
  const auto x = problem.inputs(problem.bases);
  const auto norm = [](const torch::Tensor& rows) {
    return largest(rows.to(torch::kDouble).norm(2, -1));
  };
  Magnitudes m;
  m.keys = static_cast<double>(x[1].size(-2));
  m.query = largest(x[0]);
  m.key = largest(x[1]);
  m.value = largest(x[2]);
  const auto heads_of = [](const torch::Tensor& tokens) {
    return tokens.dim() > 2 ? std::max<int64_t>(1, tokens.size(-3)) : 1;
  };
  m.group =
      static_cast<double>(heads_of(x[0])) / static_cast<double>(heads_of(x[1]));
  for (size_t i = 0; i < m.copies.size(); ++i) {
    m.copies[i] = copies_of(x[i]);
  }
  m.scale = std::abs(problem.options.scale().value_or(
      1 / std::sqrt(static_cast<double>(x[0].size(-1)))));
  m.scores = norm(x[0]) * norm(x[1]) * m.scale;
  if (problem.has_slopes) {
    const auto span = x[0].size(-2) + x[1].size(-2);
    m.scores +=
        largest(problem.slopes(problem.bases)) * static_cast<double>(span);
  }
  if (problem.has_bias) {
    m.scores += largest_finite(problem.bias(problem.bases));
  }
  if (problem.has_sinks) {
    m.scores += largest(problem.sinks(problem.bases));
  }
  m.grad_weight = norm(problem.grad_output) * norm(x[2]);
  m.grad_score = 2 * m.grad_weight;
  return m;
}

Bound bound_of(const Problem& problem, const Magnitudes& m, size_t result) {
  Bound bound;
  bound.dtype = problem.dtype;
  bound.condition = 1 + m.scores;
  bound.terms = m.keys;
  const auto num_results = problem.bases.size() + 1;
  if (result + problem.num_added() >= num_results &&
      epsilon(problem.added_dtype) > epsilon(problem.dtype)) {
    bound.dtype = problem.added_dtype;
  }
  const bool shares_tensor =
      problem.bases.size() < 3 || problem.layouts[0].text == "packed";
  const auto T = static_cast<double>(problem.grad_output.size(-2));
  const auto sizes = problem.grad_output.sizes();
  const auto rows = static_cast<double>(sizes[0] * sizes[1]) * T;
  // Gradients are summed over the elements that are one in memory, those of key
  // and value also over the queries of the heads that share keys.
  const auto of_rows = [&](size_t input) {
    return std::sqrt(T * m.group * m.copies[input]);
  };
  const auto grad_query =
      m.grad_score * m.scale * m.key * std::sqrt(m.copies[0]);
  const auto grad_key = m.grad_score * m.scale * m.query * of_rows(1);
  const auto grad_value = largest(problem.grad_output) * of_rows(2);
  if (result == 0) {
    bound.magnitude = m.value;
  } else if (shares_tensor) {
    bound.magnitude = std::max({grad_query, grad_key, grad_value});
  } else {
    bound.magnitude = result == 1 ? grad_query
        : result == 2             ? grad_key
        : result == 3             ? grad_value
                                  : m.grad_score * std::sqrt(rows);
  }
  return bound;
}

std::string name_of(size_t result) {
  return result == 0 ? "output" : c10::str("gradient ", result);
}

void check_kernels(
    const Problem& problem,
    const Problem& expected,
    Attend attend) {
  const auto reference =
      compute(expected, expected.dtype, Kernel::kReference, attend);
  const auto exact =
      compute(expected, torch::kDouble, Kernel::kReference, attend);
  const auto m = magnitudes_of(expected);
  for (const auto kernel : {Kernel::kFused, Kernel::kReference}) {
    const auto found = compute(problem, problem.dtype, kernel);
    for (size_t i = 0; i < exact.size(); ++i) {
      check_close(
          c10::str(name_of(i), " by ", kernel),
          found[i],
          reference[i],
          exact[i],
          bound_of(expected, m, i));
    }
  }
}

} // namespace torch_attention::random
