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
  /// The dtype of bias, slopes and sinks.
  torch::ScalarType added_dtype = torch::kFloat;
  /// The memory of query, key and value, which may be one tensor; then bias,
  /// slopes and sinks, if there are any.
  Tensors bases;
  /// Query, key and value as views of that memory.
  std::vector<Layout> layouts;
  bool has_bias = false;
  bool has_slopes = false;
  bool has_sinks = false;
  /// True if gradients of bias, slopes and sinks are wanted too.
  bool wants_all = false;
  /// The options without bias, slopes and sinks.
  Options options;
  /// The lengths of packed sequences; empty if they are not packed.
  Sizes query_lengths;
  Sizes key_lengths;
  /// The gradient of the output, of the same shape.
  torch::Tensor grad_output;

  /// Returns how many of bias, slopes and sinks there are.
  size_t num_added() const {
    return static_cast<size_t>(has_bias) + has_slopes + has_sinks;
  }

  /// Returns a description in one line.
  std::string text() const;

  /// Returns query, key and value of such bases.
  Tensors inputs(const Tensors& of_bases) const;

  /// Return those of such bases; undefined if there is none.
  torch::Tensor bias(const Tensors& of_bases) const;
  torch::Tensor slopes(const Tensors& of_bases) const;
  torch::Tensor sinks(const Tensors& of_bases) const;

  /// Returns all options.
  Options all_options(const Tensors& of_bases) const;

  /// Returns the output for such bases.
  torch::Tensor attend(const Tensors& of_bases, Kernel kernel) const;

  /// Returns the output of packed sequences, each computed alone.
  torch::Tensor attend_one_by_one(const Tensors& of_bases, Kernel kernel) const;

  /// Returns the output of the reference kernel with a score function, which
  /// applies mask and bias, and the softcap where nothing is added after it.
  torch::Tensor attend_by_function(const Tensors& of_bases, Kernel kernel)
      const;

  /// Returns the bases in another dtype, as leaves that want gradients.
  Tensors leaves(torch::ScalarType of_dtype) const;

  /// Returns the leaves whose gradients are wanted.
  Tensors wanted(const Tensors& leaves) const;
};

using Attend = torch::Tensor (Problem::*)(const Tensors&, Kernel) const;

/// Returns the output, then the gradients that are wanted.
Tensors compute(
    const Problem& problem,
    torch::ScalarType dtype,
    Kernel kernel,
    Attend attend = &Problem::attend);

Problem make_problem(Random& random);

/// Makes a problem of packed sequences.
Problem make_packed_problem(Random& random);

/// Makes a small problem in float64.
Problem make_small_problem(Random& random);

} // namespace torch_attention::random
