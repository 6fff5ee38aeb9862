#include <nn/modules/temperature.h>

#include <check.h>
#include <elementwise.h>
#include <kernels/elements.h>
#include <nn/checks.h>

#include <cmath>
#include <limits>
#include <ostream>

namespace torch_attention::detail {

void check_temperature(const char* name, const TemperatureOptions& options) {
  checks::check_positive(
      name, "floor_scale of the temperature", options.floor_scale());
  TORCH_ATTENTION_CHECK(
      std::isfinite(options.scale()),
      "{}: expected a finite scale of the temperature, but got {}",
      name,
      options.scale());
  TORCH_ATTENTION_CHECK(
      options.offset() >= 0,
      "{}: expected an offset >= 0 of the temperature, but got {}",
      name,
      options.offset());
}

void print_temperature(
    std::ostream& stream,
    const TemperatureOptions& options) {
  stream << ", temperature_floor_scale=" << options.floor_scale()
         << ", temperature_scale=" << options.scale();
  if (options.by_order()) {
    stream << ", temperature_by_order=true";
  }
}

torch::Tensor with_temperature(
    const torch::Tensor& queries,
    const torch::Tensor& positions,
    const TemperatureOptions& options) {
  const auto dtype = kernels::compute_dtype(queries.scalar_type());
  const auto most = std::numeric_limits<int64_t>::max() - options.offset();
  const auto steps = torch::div(
      positions.clamp_max(most) + options.offset(),
      options.floor_scale(),
      "floor");
  // In float64, since float32 cannot represent large positions.
  const auto logarithms = by_rows(
      steps.to(torch::kDouble).unsqueeze(-1),
      [](const torch::Tensor& rows) { return rows.log1p(); });
  const auto factors =
      (logarithms * options.scale() + 1).to(queries.device(), dtype);
  // (T, 1), or (B, 1, T, 1).
  const auto factor = factors.dim() == 3 ? factors.unsqueeze(1) : factors;
  return (queries.to(dtype) * factor).to(queries.scalar_type());
}

} // namespace torch_attention::detail
