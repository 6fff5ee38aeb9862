#pragma once

#include <support/test.h>

#include <functional>
#include <vector>

/// Expected results of the device's operators, in float64 on the CPU.
namespace torch_attention::testing {

/// Returns bool (T, S), true where the query `t` must not see the key `s`.
inline torch::Tensor hidden_where(
    int64_t T,
    int64_t S,
    const std::function<bool(int64_t t, int64_t s)>& hides) {
  auto hidden = torch::zeros({T, S}, torch::kBool);
  for (int64_t t = 0; t < T; ++t) {
    for (int64_t s = 0; s < S; ++s) {
      hidden[t][s] = hides(t, s);
    }
  }
  return hidden;
}

/// Returns the output for (B, H, T, D), (B, G, S, D) and (B, G, S, Dv), by the
/// reference in float64.
inline torch::Tensor reference_in_double(
    const std::vector<torch::Tensor>& inputs,
    functional::ScaledDotProductAttentionFuncOptions options) {
  return functional::scaled_dot_product_attention(
      inputs[0],
      inputs[1],
      inputs[2],
      options.kernel(Kernel::kReference).enable_gqa(true));
}

/// Returns float64 leaves of the CPU with the numbers of `inputs`.
inline std::vector<torch::Tensor> double_leaves(
    const std::vector<torch::Tensor>& inputs) {
  std::vector<torch::Tensor> leaves;
  for (const auto& x : inputs) {
    leaves.push_back(x.detach().cpu().to(torch::kDouble).requires_grad_());
  }
  return leaves;
}

/// Returns the output, then the gradients of `leaves`; float64 on the CPU.
inline std::vector<torch::Tensor> with_gradients(
    const torch::Tensor& output,
    const std::vector<torch::Tensor>& leaves,
    const torch::Tensor& grad_output) {
  auto results = torch::autograd::grad(
      {output}, leaves, {grad_output.to(output.options())});
  results.insert(results.begin(), output.detach());
  for (auto& x : results) {
    x = x.cpu().to(torch::kDouble);
  }
  return results;
}

} // namespace torch_attention::testing
