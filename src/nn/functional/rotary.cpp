#include <torch_attention/nn/functional/rotary.h>

#include <nn/checks.h>
#include <nn/functional/rotary_of_call.h>
#include <nn/rotation.h>

#include <c10/util/Exception.h>

namespace torch_attention::functional {

namespace {

constexpr const char* kRotary = "rotary_embedding";

void check_x_and_positions(
    const torch::Tensor& x,
    const torch::Tensor& positions) {
  TORCH_CHECK(
      x.defined() && positions.defined(),
      kRotary,
      ": ",
      x.defined() ? "positions are" : "x is",
      " undefined");
  checks::check_dense(kRotary, "x", x);
  checks::check_dense(kRotary, "tensor of positions", positions);
  checks::check_floating(kRotary, "", "x", x);
  TORCH_CHECK(
      x.dim() >= 2,
      kRotary,
      ": expected x of shape (..., T, D), but got ",
      x.sizes());
  TORCH_CHECK(
      checks::has_integers(positions),
      kRotary,
      ": expected positions of an integer dtype, but got ",
      positions.scalar_type());
  TORCH_CHECK(
      positions.device() == x.device(),
      kRotary,
      ": expected positions on ",
      x.device(),
      ", where x is, but got ",
      positions.device());
  const bool for_all = positions.dim() == 1;
  const bool for_each =
      positions.dim() == 2 && x.dim() >= 3 && positions.size(0) == x.size(0);
  TORCH_CHECK(
      (for_all || for_each) && positions.size(-1) == x.size(-2),
      kRotary,
      ": expected positions (T) for x (..., T, D), or (B, T) for x (B, ..., T, "
      "D), but got positions ",
      positions.sizes(),
      ", x ",
      x.sizes());
}

/// (B, T, pairs) -> (B, 1, ..., T, pairs) of `dim` dimensions
torch::Tensor for_heads(torch::Tensor table, int64_t dim) {
  while (table.dim() > 2 && table.dim() < dim) {
    table = table.unsqueeze(1);
  }
  return table;
}

} // namespace

namespace detail {

torch::Tensor rotary_of_call(
    const torch::Tensor& x,
    const torch::Tensor& positions,
    const RotaryOptions& options,
    bool backwards) {
  check_x_and_positions(x, positions);
  torch_attention::detail::check_rotary(kRotary, options, x.size(-1));
  const auto [cos, sin] =
      torch_attention::detail::rotation_at(positions, options, x.size(-1));
  return torch_attention::detail::rotate(
      x,
      {for_heads(cos, x.dim()),
       for_heads(backwards ? sin.neg() : sin, x.dim())},
      options.pairing(),
      Kernel::kAuto);
}

} // namespace detail

torch::Tensor rotary_embedding(
    const torch::Tensor& x,
    const torch::Tensor& positions,
    const RotaryOptions& options) {
  return detail::rotary_of_call(x, positions, options, /*backwards=*/false);
}

} // namespace torch_attention::functional
