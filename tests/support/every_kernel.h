#pragma once

#include <support/close.h>
#include <support/test.h>

#include <vector>

namespace torch_attention::testing {

/// The kernels: the reference, ours, and LibTorch's, which computes what ours
/// does not read.
enum class Way { kReference, kOurs, kLibTorch };

/// A query of T tokens, keys and values of S, and each kernel in turn.
struct Operands {
  Way way = GENERATE(Way::kReference, Way::kOurs, Way::kLibTorch);
  torch::Tensor query;
  torch::Tensor key;
  torch::Tensor value;

  Operands(int64_t T, int64_t S)
      : query(draw(T)), key(draw(S)), value(draw(S)) {}

  static torch::Tensor draw(int64_t tokens) {
    return torch::randn({2, 2, tokens, 4}, torch::kDouble).requires_grad_();
  }

  /// The output, then the gradients.
  std::vector<torch::Tensor> attend(
      functional::ScaledDotProductAttentionFuncOptions options) const {
    CAPTURE(static_cast<int>(way));
    options.kernel(
        way == Way::kReference ? Kernel::kReference : Kernel::kFused);
    const auto output = functional::scaled_dot_product_attention(
        way == Way::kLibTorch ? at::_neg_view(query.neg()) : query,
        key,
        value,
        options);
    auto result = torch::autograd::grad(
        {output}, {query, key, value}, {torch::ones_like(output)});
    result.insert(result.begin(), output.detach());
    return result;
  }
};

} // namespace torch_attention::testing
