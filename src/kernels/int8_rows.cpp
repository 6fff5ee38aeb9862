#include <kernels/int8_rows.h>

#include <kernels/elements.h>
#include <kernels/plain.h>
#include <kernels/threads.h>

#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/full_like.h>
#include <ATen/ops/where.h>
#include <ATen/ops/zeros_like.h>

#include <limits>
#include <type_traits>

namespace torch_attention::kernels {

namespace {

constexpr int64_t kMost = 127;

bool has_kernel(const torch::Tensor& x) {
  return is_plain(x) && !is_traced();
}

template <typename X>
cpu::Int8RowsArguments<X> sizes_of(const torch::Tensor& x) {
  return {x.size(0), x.size(1), x.size(2), x.size(3)};
}

torch::Tensor quantized_by_operators(const torch::Tensor& x) {
  const auto numbers = x.to(torch::kFloat);
  const auto largest = numbers.abs().amax(-1, /*keepdim=*/true);
  const auto scale = at::where(
      largest.isfinite(),
      largest / kMost,
      at::full_like(largest, std::numeric_limits<float>::quiet_NaN()));
  const auto divided =
      numbers.div(scale).round().clamp(-kMost, kMost).to(torch::kInt8);
  const auto integers = at::where(scale > 0, divided, at::zeros_like(divided));
  return at::cat({integers, scale.contiguous().view(torch::kInt8)}, -1);
}

torch::Tensor dequantized_by_operators(
    const torch::Tensor& rows,
    int64_t size,
    torch::Dtype dtype) {
  const auto scale = rows.slice(-1, rows.size(-1) - kScaleBytes)
                         .contiguous()
                         .view(torch::kFloat);
  return (rows.slice(-1, 0, size).to(torch::kFloat) * scale).to(dtype);
}

} // namespace

torch::Tensor quantized(const torch::Tensor& x) {
  if (!has_kernel(x)) {
    return quantized_by_operators(x);
  }
  const auto numbers = with_contiguous_rows(
      x.scalar_type() == torch::kDouble ? x.to(torch::kFloat) : x);
  if (!has_element(numbers.scalar_type())) {
    return quantized_by_operators(x);
  }
  const auto rows = at::empty(
      {x.size(0), x.size(1), x.size(2), x.size(3) + kScaleBytes},
      x.options().dtype(torch::kInt8));
  with_element(numbers.scalar_type(), [&](auto element) {
    using X = decltype(element);
    if constexpr (!std::is_same_v<X, double>) {
      cpu::quantize_rows(
          sizes_of<X>(x), read<X>(numbers), write<int8_t>(rows), threads());
    }
  });
  return rows;
}

torch::Tensor dequantized(
    const torch::Tensor& rows,
    int64_t size,
    torch::Dtype dtype) {
  if (!has_kernel(rows) || !has_element(dtype)) {
    return dequantized_by_operators(rows, size, dtype);
  }
  if (dtype == torch::kDouble) {
    return dequantized(rows, size, torch::kFloat).to(dtype);
  }
  const auto numbers = at::empty(
      {rows.size(0), rows.size(1), rows.size(2), size},
      rows.options().dtype(dtype));
  with_element(dtype, [&](auto element) {
    using X = decltype(element);
    if constexpr (!std::is_same_v<X, double>) {
      cpu::dequantize_rows(
          sizes_of<X>(numbers),
          {read<int8_t>(rows), rows.size(3) - kScaleBytes},
          write<X>(numbers),
          threads());
    }
  });
  return numbers;
}

} // namespace torch_attention::kernels
