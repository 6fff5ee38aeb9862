#pragma once

#include <ATen/core/List.h>
#include <torch/types.h>

#include <optional>

/// The conditions under which swapped models attend by our operator, checked at
/// each call. Elsewhere they compute by the operators that they had.
namespace torch_attention::operators {

/// Returns whether softmax(scale (q k) + biases, hidden keys filled, dim) v is
/// what our operator computes: query (..., T, D), transposed_key (..., D, S),
/// value (..., S, Dv). `dtypes` are those that scores and weights are cast to;
/// `hiding` are true where scores become the number in `fills`, after all
/// factors; `biases` are added. `own_dtypes` have to be that of the query,
/// where others would give the output another dtype.
///
/// Fills that are finite hide keys only beside scores that are far higher: each
/// query has to see a key, and the numbers of query and key must be small
/// enough.
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
/// `scaled_dot_product_attention` of these arguments.
bool takes_sdpa(
    const torch::Tensor& query,
    const torch::Tensor& key,
    const torch::Tensor& value,
    const std::optional<torch::Tensor>& attn_mask,
    double dropout_p,
    bool is_causal,
    std::optional<double> scale,
    bool enable_gqa);

/// Returns `constant` times the factors, or divided by those that `divides`
/// names; NaN if one is not a single number, or has a gradient.
double product(
    const torch::Scalar& constant,
    torch::TensorList factors,
    const c10::List<bool>& divides);

} // namespace torch_attention::operators
