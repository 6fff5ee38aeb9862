#include <torch_attention/nn/functional/rotary.h>

#include <check.h>
#include <kernels/elements.h>
#include <kernels/plain.h>
#include <nn/checks.h>
#include <nn/functional/rotary.h>
#include <nn/rotary.h>

#include <c10/util/Exception.h>

namespace torch_attention::functional {

namespace {

constexpr const char* kRotary = "rotary_embedding";

void check_x(const torch::Tensor& x) {
  TORCH_CHECK(x.defined(), "rotary_embedding: x is undefined");
  checks::check_dense(kRotary, "x", x);
  checks::check_floating(kRotary, "", "x", x);
  TORCH_ATTENTION_CHECK(
      x.dim() >= 2,
      "rotary_embedding: expected x of shape (..., T, D), but got {}",
      x.sizes());
}

void check_positions(const torch::Tensor& x, const torch::Tensor& positions) {
  TORCH_CHECK(positions.defined(), "rotary_embedding: positions are undefined");
  checks::check_dense(kRotary, "tensor of positions", positions);
  TORCH_ATTENTION_CHECK(
      checks::has_integers(positions),
      "rotary_embedding: expected positions of an integer dtype, but got {}",
      positions.scalar_type());
  TORCH_ATTENTION_CHECK(
      positions.device() == x.device(),
      "rotary_embedding: expected positions on {}, where x is, but got {}",
      x.device(),
      positions.device());
  const bool for_all = positions.dim() == 1;
  const bool for_each =
      positions.dim() == 2 && x.dim() >= 3 && positions.size(0) == x.size(0);
  TORCH_ATTENTION_CHECK(
      (for_all || for_each) && positions.size(-1) == x.size(-2),
      "rotary_embedding: expected positions (T) for x (..., T, D), or "
      "(B, T) for x (B, ..., T, D), but got positions {}, x {}",
      positions.sizes(),
      x.sizes());
}

void check_table(
    const char* what,
    const torch::Tensor& x,
    const torch::Tensor& table) {
  TORCH_ATTENTION_CHECK(
      table.defined(), "rotary_embedding: {} is undefined", what);
  checks::check_dense(kRotary, what, table);
  checks::check_floating(kRotary, "", what, table);
  kernels::check_device(kRotary, what, table, x.device());
}

/// Checks tables with one row per token.
void check_rows(const torch::Tensor& x, const torch::Tensor& table) {
  const bool for_all = table.dim() == 2;
  const bool for_each =
      table.dim() == 3 && x.dim() >= 3 && table.size(0) == x.size(0);
  TORCH_ATTENTION_CHECK(
      (for_all || for_each) && table.size(-2) == x.size(-2),
      "rotary_embedding: expected cos and sin (T, pairs) for x (..., T, "
      "D), or (B, T, pairs) for x (B, ..., T, D), but got tables {}, x "
      "{}; `positions` take rows of longer tables",
      table.sizes(),
      x.sizes());
}

/// Checks tables (N, pairs) and that `positions` are rows of them.
void check_rows_at(const torch::Tensor& positions, const torch::Tensor& table) {
  TORCH_ATTENTION_CHECK(
      table.dim() == 2,
      "rotary_embedding: expected, with positions, cos and sin (N, "
      "pairs), but got {}",
      table.sizes());
  // Skipped on a GPU: reading the value would synchronise.
  if (!kernels::is_plain(positions) || positions.numel() == 0) {
    return;
  }
  const auto [least, most] = checks::to_int64(positions).aminmax();
  const auto first = least.item<int64_t>();
  const auto last = most.item<int64_t>();
  TORCH_ATTENTION_CHECK(
      first >= 0 && last < table.size(0),
      "rotary_embedding: expected positions in the tables, from 0 to {}, "
      "but got {}",
      table.size(0) - 1,
      first < 0 ? first : last);
}

void check_tables(const torch::Tensor& x, const RotaryTables& tables) {
  const auto& cos = tables.cos();
  check_table("cos", x, cos);
  check_table("sin", x, tables.sin());
  TORCH_ATTENTION_CHECK(
      cos.sizes() == tables.sin().sizes(),
      "rotary_embedding: expected cos and sin of the same shape, but got "
      "{} and {}",
      cos.sizes(),
      tables.sin().sizes());
  TORCH_ATTENTION_CHECK(
      cos.dim() >= 2 && 2 * cos.size(-1) <= x.size(-1),
      "rotary_embedding: expected cos and sin of at most D / 2 = {} "
      "pairs, but got {}{}",
      x.size(-1) / 2,
      cos.sizes(),
      cos.dim() > 0 && cos.size(-1) == x.size(-1)
          ? "; of tables with each angle twice pass one half"
          : "");
  if (tables.positions().defined()) {
    check_positions(x, tables.positions());
    check_rows_at(tables.positions(), cos);
  } else {
    check_rows(x, cos);
  }
}

/// Returns the table's rows at `positions`, (T, pairs) or (B, T, pairs), in
/// float32 or float64.
torch::Tensor rows_of(
    const torch::Tensor& table,
    const torch::Tensor& positions,
    const torch::Tensor& x) {
  const auto wide = table.to(kernels::compute_dtype(x.scalar_type()));
  return positions.defined()
      ? torch::embedding(wide, checks::to_int64(positions))
      : wide;
}

/// Reshapes (B, T, pairs) to (B, 1, ..., T, pairs) with `dim` dimensions.
torch::Tensor for_heads(torch::Tensor table, int64_t dim) {
  while (table.dim() > 2 && table.dim() < dim) {
    table = table.unsqueeze(1);
  }
  return table;
}

} // namespace

namespace detail {

torch::Tensor apply_rotary(
    const torch::Tensor& x,
    const torch::Tensor& positions,
    const RotaryOptions& options,
    bool backwards) {
  check_x(x);
  check_positions(x, positions);
  torch_attention::detail::check_rotary(kRotary, options, x.size(-1));
  const auto [cos, sin] =
      torch_attention::detail::rotary_angles_at(positions, options, x.size(-1));
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
  return detail::apply_rotary(x, positions, options, /*backwards=*/false);
}

torch::Tensor rotary_embedding(
    const torch::Tensor& x,
    const RotaryTables& tables) {
  check_x(x);
  check_tables(x, tables);
  const auto table = [&](const torch::Tensor& of_angles) {
    return for_heads(rows_of(of_angles, tables.positions(), x), x.dim());
  };
  return torch_attention::detail::rotate(
      x,
      {table(tables.cos()), table(tables.sin())},
      tables.pairing(),
      Kernel::kAuto);
}

} // namespace torch_attention::functional
