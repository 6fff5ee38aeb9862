#pragma once

#include <random/tensors.h>

#include <torch_attention/torch_attention.h>

#include <optional>
#include <string>
#include <vector>

namespace torch_attention::random {

using Options = functional::ScaledDotProductAttentionFuncOptions;
using Tensors = std::vector<torch::Tensor>;

/// An attention of any sizes, layouts and options.
struct Problem {
  torch::ScalarType dtype = torch::kFloat;
  /// The memory of query, key and value, which may be one tensor; then bias and
  /// slopes, if there are any. Numbers of `dtype`.
  Tensors bases;
  /// Query, key and value in that memory.
  std::vector<Layout> layouts;
  bool has_bias = false;
  bool has_slopes = false;
  /// Whether gradients of bias and slopes are wanted too.
  bool wants_all = false;
  /// Without bias and slopes.
  Options options;
  /// As large as the output.
  torch::Tensor grad_output;

  /// What it is, in one line.
  std::string text() const;

  /// Query, key and value of such bases.
  Tensors inputs(const Tensors& of_bases) const;

  /// The output for such bases.
  torch::Tensor attend(const Tensors& of_bases, Kernel kernel) const;

  /// The bases in another dtype, as leaves that want gradients.
  Tensors leaves(torch::ScalarType of_dtype) const;

  /// The leaves whose gradients are wanted.
  Tensors wanted(const Tensors& leaves) const;
};

Problem make_problem(Random& random);

/// A small one in float64.
Problem make_small_problem(Random& random);

} // namespace torch_attention::random
