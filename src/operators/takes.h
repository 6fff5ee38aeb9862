#pragma once

#include <ATen/core/List.h>
#include <torch/types.h>

#include <optional>

/// The conditions for our operator in swapped models, checked in each call. If
/// they do not hold, the model's original operators run.
namespace torch_attention::operators {

/// Returns whether our operator computes softmax(scale (q k) + biases, hidden
/// keys filled, dim) v: query (..., T, D), transposed_key (..., D, S), value
/// (..., S, Dv). Scores and weights are cast to `dtypes`. Where a mask in
/// `hiding` is true, scores are replaced by its number in `fills`, after all
/// factors; `biases` are added. `own_dtypes` must equal the dtype of the query,
/// since any other would change the dtype of the output.
///
/// Finite fills hide keys only if other scores are far higher: each query has
/// to see a key, and the elements of query and key have to be small enough.
bool takes(
    const torch::Tensor& query,
    const torch::Tensor& transposed_key,
    const torch::Tensor& value,
    int64_t dim,
    double scale,
    torch::IntArrayRef dtypes,
    torch::TensorList hiding,
    torch::ArrayRef<double> fills,
    torch::TensorList biases,
    torch::IntArrayRef own_dtypes);

/// Returns whether our operator computes LibTorch's
/// `scaled_dot_product_attention` for these arguments.
bool takes_sdpa(
    const torch::Tensor& query,
    const torch::Tensor& key,
    const torch::Tensor& value,
    const std::optional<torch::Tensor>& attn_mask,
    double dropout_p,
    bool is_causal,
    std::optional<double> scale,
    bool enable_gqa);

/// Returns `constant` times the factors, or divided by those for which
/// `divides` is true; NaN if a factor is not a single number or requires a
/// gradient.
double product(
    const torch::Scalar& constant,
    torch::TensorList factors,
    const c10::List<bool>& divides);

} // namespace torch_attention::operators
