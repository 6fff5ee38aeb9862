#include <nn/modules/rotary_angles.h>

#include <check.h>
#include <kernels/elements.h>
#include <nn/checks.h>

#include <algorithm>
#include <optional>

namespace torch_attention::detail {

namespace {

void check_table(
    const char* name,
    const char* what,
    const torch::Tensor& table,
    const torch::Tensor& x,
    int64_t pairs) {
  const auto B = x.size(0);
  const auto T = x.size(1);
  checks::check_has_numbers(name, what, table, x.device());
  TORCH_ATTENTION_CHECK(
      table.device() == x.device(),
      "{}: expected {} on {}, where the input is, but got one on {}",
      name,
      what,
      x.device(),
      table.device());
  const bool fits = table.is_floating_point() &&
      (table.dim() == 2 || (table.dim() == 3 && table.size(0) == B)) &&
      table.size(-2) == T && table.size(-1) == pairs;
  TORCH_ATTENTION_CHECK(
      fits,
      "{}: expected a floating-point {} of shape (T, pairs) = [{}, {}] "
      "or (B, T, pairs), but got {} of shape {}{}",
      name,
      what,
      T,
      pairs,
      table.scalar_type(),
      table.sizes(),
      table.dim() > 0 && table.size(-1) == 2 * pairs
          ? "; of tables with each angle twice pass one half"
          : "");
}

/// Checks the caller's cosines and sines. Returns whether there are any.
bool check_tables(
    const char* name,
    int64_t pairs,
    const torch::Tensor& x,
    const torch::Tensor& cos,
    const torch::Tensor& sin) {
  TORCH_ATTENTION_CHECK(
      cos.defined() == sin.defined(),
      "{}: expected rotary_cos and rotary_sin or neither, but got {} alone",
      name,
      cos.defined() ? "rotary_cos" : "rotary_sin");
  if (!cos.defined()) {
    return false;
  }
  check_table(name, "rotary_cos", cos, x, pairs);
  check_table(name, "rotary_sin", sin, x, pairs);
  return true;
}

/// Returns the caller's table (T, pairs) or (B, T, pairs) in the dtype of
/// angles, so that it broadcasts to heads.
torch::Tensor caller_table(const torch::Tensor& table, const torch::Tensor& x) {
  const auto wide = table.to(kernels::compute_dtype(x.scalar_type()));
  return wide.dim() == 3 ? wide.unsqueeze(1) : wide;
}

/// Returns the length of the longest sequence, if angles depend on it and it
/// differs from x: some tokens are padding, or other processes have more.
std::optional<int64_t> length_of(
    const RotaryTable& table,
    const torch::Tensor& x,
    const ForwardOptions& call,
    const torch::Tensor& positions,
    const Partition& partition) {
  if (!table.changes_with_length()) {
    return std::nullopt;
  }
  const auto& lengths = call.key_lengths();
  const bool goes_by_lengths =
      !call.positions().defined() && lengths.defined() && lengths.numel() > 0;
  const auto parts = partition.num_token_parts();
  if (!goes_by_lengths && parts == 1) {
    return std::nullopt;
  }
  const auto most =
      call.cu_seqlens().defined() ? end_of(positions) : x.size(1) * parts;
  const auto own = goes_by_lengths
      ? std::clamp<int64_t>(lengths.max().item<int64_t>(), 0, most)
      : end_of(positions);
  // Every process has to call this, even if its options differ, which is
  // reported later.
  return partition.longest(own, x.device());
}

} // namespace

void check_angles(
    const char* name,
    int64_t pairs,
    const torch::Tensor& x,
    const ForwardOptions& call) {
  const bool given =
      check_tables(name, pairs, x, call.rotary_cos(), call.rotary_sin());
  TORCH_ATTENTION_CHECK(
      !given || !call.positions().defined(),
      "{}: expected positions or rotary_cos and rotary_sin, but got both",
      name);
}

void check_angles(
    const char* name,
    int64_t pairs,
    const torch::Tensor& x,
    const DecodeOptions& call,
    const NewTokens& tokens) {
  const bool given =
      check_tables(name, pairs, x, call.rotary_cos(), call.rotary_sin());
  TORCH_ATTENTION_CHECK(
      !given || !tokens.padding.defined(),
      "{}: expected rotary_cos and rotary_sin without left_padded, whose "
      "tokens move",
      name);
}

RotaryAngles rotary_angles(
    RotaryTable& table,
    const torch::Tensor& x,
    const ForwardOptions& call,
    const torch::Tensor& positions,
    const Partition& partition) {
  if (call.rotary_cos().defined()) {
    // All heads use them, so their gradients are summed over the processes.
    return {
        partition.enter_weight(caller_table(call.rotary_cos(), x)),
        partition.enter_weight(caller_table(call.rotary_sin(), x))};
  }
  const auto length = length_of(table, x, call, positions, partition);
  return positions.defined()
      ? table.at_positions(positions, x.device(), length)
      : table.at(/*first=*/{}, x.size(1), x.device(), length);
}

RotaryAngles rotary_angles(
    RotaryTable& table,
    const torch::Tensor& x,
    const DecodeOptions& call,
    const NewTokens& tokens) {
  if (call.rotary_cos().defined()) {
    return {
        caller_table(call.rotary_cos(), x), caller_table(call.rotary_sin(), x)};
  }
  return table.at(tokens.before, x.size(1), x.device(), tokens.most_after);
}

} // namespace torch_attention::detail
