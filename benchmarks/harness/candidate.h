#pragma once

#include <torch/types.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

namespace torch_attention::benchmarks {

/// The seed of what the candidates share.
constexpr uint64_t kSeed = 123;

/// One of several ways to do the same work.
struct Candidate {
  std::string name;

  /// Does the work once and returns the output (..., T, D), with tokens last
  /// but one. With backward it then holds the gradients.
  std::function<torch::Tensor()> run;

  /// Returns the gradients of the last run, of input and weights, in one order
  /// and layout for all candidates. The candidate forgets them.
  std::function<std::vector<torch::Tensor>()> take_gradients = [] {
    return std::vector<torch::Tensor>();
  };

  /// True if it drops attention weights; `set_dropout` turns this on and off.
  bool drops = false;
  std::function<void(bool)> set_dropout;

  /// The number of first tokens for which the others compute the same; none:
  /// all.
  std::optional<int64_t> compared_tokens;

  /// The share of the largest element by which its results may differ from
  /// ours. Sums of thousands of floats in another order are 1e-6 apart, wrong
  /// ones more than 1e-2.
  double allowed_difference = 1e-4;

  /// The number of times that the case's work contains its work. Its time is
  /// multiplied by this in the ratio to ours.
  double times = 1;
};

/// Returns one without gradients.
Candidate forward_candidate(
    const std::string& name,
    std::function<torch::Tensor()> run);

/// Returns a leaf that shares the values, but not the gradient.
torch::Tensor leaf_of(const torch::Tensor& values, bool requires_grad);

/// Returns a function that runs `forward`, and its backward pass if there is a
/// cotangent, from leaves without gradients.
std::function<torch::Tensor()> run_of(
    std::function<torch::Tensor()> forward,
    const torch::Tensor& cotangent,
    std::vector<torch::Tensor> leaves);

/// Returns the gradients of the leaves, which lose them.
std::vector<torch::Tensor> take_gradients_of(
    const std::vector<torch::Tensor>& leaves);

/// Makes a candidate of a module with our classes' `forward` and options.
template <typename Impl>
Candidate module_candidate(
    const std::string& name,
    const std::shared_ptr<Impl>& module,
    const torch::Tensor& input,
    const torch::Tensor& cotangent) {
  const auto x = leaf_of(input, cotangent.defined());
  std::vector<torch::Tensor> leaves{x};
  for (const auto& parameter : module->parameters()) {
    leaves.push_back(parameter);
  }
  Candidate candidate;
  candidate.name = name;
  candidate.run =
      run_of([module, x] { return module->forward(x); }, cotangent, leaves);
  candidate.take_gradients = [leaves] { return take_gradients_of(leaves); };
  candidate.drops = module->options.dropout() > 0;
  candidate.set_dropout = [module](bool on) { module->train(on); };
  return candidate;
}

} // namespace torch_attention::benchmarks
