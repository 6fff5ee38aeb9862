#include <nn/checks.h>

#include <check.h>
#include <kernels/plain.h>

#include <ATen/EmptyTensor.h>
#include <ATen/TensorSubclassLikeUtils.h>
#include <ATen/autocast_mode.h>

#include <cmath>
#include <limits>
#include <tuple>

namespace torch_attention::checks {

void check_positive(const char* name, const char* option, int64_t value) {
  TORCH_ATTENTION_CHECK(
      value > 0, "{}: expected {} > 0, but got {}", name, option, value);
}

void check_dropout(const char* name, double dropout) {
  TORCH_ATTENTION_CHECK(
      dropout >= 0 && dropout <= 1,
      "{}: expected dropout in [0, 1], but got {}",
      name,
      dropout);
}

void check_eps(const char* name, double eps) {
  TORCH_ATTENTION_CHECK(
      eps >= 0 && std::isfinite(eps),
      "{}: expected a finite eps >= 0, but got {}",
      name,
      eps);
}

namespace {

void check_windows(const char* name, const ScoreRule& rule) {
  const auto& [window, after] = std::tie(rule.window, rule.window_after);
  TORCH_ATTENTION_CHECK(
      !window || *window > 0,
      "{}: expected a window > 0, but got {}",
      name,
      *window);
  TORCH_ATTENTION_CHECK(
      !after || *after >= 0,
      "{}: expected window_after >= 0, but got {}",
      name,
      *after);
  TORCH_ATTENTION_CHECK(
      !after || !rule.causal,
      "{}: expected no window_after beside causal, which hides all later "
      "keys, but got window_after = {}",
      name,
      *after);
  TORCH_ATTENTION_CHECK(
      !window || after || rule.causal,
      "{}: expected window_after beside window = {} without causal, "
      "since a window hides no later keys; window_after({}) lets a query "
      "see as far ahead as back",
      name,
      *window,
      *window - 1);
}

void check_chunk(const char* name, const ScoreRule& rule) {
  const auto& [chunk, window, after] =
      std::tie(rule.chunk, rule.window, rule.window_after);
  TORCH_ATTENTION_CHECK(
      !chunk || *chunk > 0,
      "{}: expected a chunk > 0, but got {}",
      name,
      *chunk);
  TORCH_ATTENTION_CHECK(
      !chunk || (!window && !after),
      "{}: expected a chunk or windows, but got chunk = {} beside {}{}",
      name,
      *chunk,
      window ? "window = " : "window_after = ",
      window ? *window : after.value_or(0));
}

} // namespace

void check_rule(const char* name, const ScoreRule& rule) {
  const auto& [scale, softcap] = std::tie(rule.scale, rule.softcap);
  TORCH_ATTENTION_CHECK(
      !scale || std::isfinite(*scale),
      "{}: expected a finite scale, but got {}",
      name,
      *scale);
  // Outside of this range, score / softcap over- or underflows in float32.
  TORCH_ATTENTION_CHECK(
      !softcap || (*softcap >= 1e-6 && *softcap <= 1e6),
      "{}: expected a softcap in [1e-6, 1e6], but got {}",
      name,
      *softcap);
  check_windows(name, rule);
  check_chunk(name, rule);
}

void check_rule_without_positions(const char* name, const ScoreRule& rule) {
  check_rule(name, rule);
  TORCH_ATTENTION_CHECK(
      !rule.hides_keys(),
      "{}: expected a rule that hides no keys by their positions, but "
      "got one with causal, a window or a chunk",
      name);
}

void check_dense(const char* name, const char* what, const torch::Tensor& x) {
  TORCH_ATTENTION_CHECK(
      !x.is_nested(),
      "{}: expected a dense {}, but got a nested tensor; pad it "
      "(to_padded_tensor)",
      name,
      what);
  TORCH_ATTENTION_CHECK(
      !x.is_quantized(),
      "{}: expected a dense {}, but got a quantized tensor; convert it "
      "with dequantize()",
      name,
      what);
  TORCH_ATTENTION_CHECK(
      x.layout() == torch::kStrided,
      "{}: expected a dense {}, but got a tensor of layout {}; convert "
      "it with to_dense()",
      name,
      what,
      x.layout());
}

void check_has_numbers(
    const char* name,
    const char* what,
    const torch::Tensor& x,
    torch::Device device) {
  check_dense(name, what, x);
  TORCH_ATTENTION_CHECK(
      !x.is_meta() || device.is_meta(),
      "{}: expected {} with numbers, but got a tensor on the device meta",
      name,
      what);
}

void check_floating(
    const char* name,
    const char* article,
    const char* what,
    const torch::Tensor& x) {
  const auto dtype = x.scalar_type();
  const bool supported = dtype == torch::kFloat || dtype == torch::kDouble ||
      dtype == torch::kBFloat16 || dtype == torch::kHalf;
  TORCH_ATTENTION_CHECK(
      supported,
      "{}: expected {}floating-point {}, but got {}; attention is "
      "computed in float32, float64, bfloat16 and float16",
      name,
      article,
      what,
      dtype);
}

void check_can_be_saved(
    const char* name,
    c10::ArrayRef<const torch::Tensor*> tensors) {
  bool inference = false;
  bool recorded = false;
  for (const auto* x : tensors) {
    inference = inference || (x->defined() && x->is_inference());
    recorded = recorded || (x->defined() && x->requires_grad());
  }
  TORCH_ATTENTION_CHECK(
      !inference || !recorded || !torch::GradMode::is_enabled(),
      "{}: expected tensors that autograd can save for the gradients "
      "that are asked for, but got one that was made in inference mode; "
      "clone() it outside of that mode, or compute under "
      "torch::NoGradGuard",
      name);
}

bool has_integers(const torch::Tensor& x) {
  return c10::isIntegralType(x.scalar_type(), /*includeBool=*/false);
}

torch::Tensor to_int64(const torch::Tensor& integers) {
  auto result = integers.to(torch::kLong);
  if (integers.scalar_type() == torch::kUInt64) {
    result =
        result.masked_fill(result < 0, std::numeric_limits<int64_t>::max());
  }
  return result;
}

void check_counts(
    const char* name,
    const char* what,
    const torch::Tensor& counts,
    int64_t batch_size) {
  TORCH_ATTENTION_CHECK(
      has_integers(counts) && counts.dim() == 1 && counts.size(0) == batch_size,
      "{}: expected {} of an integer dtype and shape (batch_size) = "
      "[{}], but got {} of shape {}",
      name,
      what,
      batch_size,
      counts.scalar_type(),
      counts.sizes());
}

torch::Tensor to_counts(
    const char* name,
    const char* what,
    const torch::Tensor& counts,
    int64_t batch_size,
    int64_t most) {
  if (!counts.defined()) {
    return counts;
  }
  check_has_numbers(name, what, counts);
  check_counts(name, what, counts, batch_size);
  auto result = to_int64(counts).to(torch::kCPU).contiguous();
  for (int64_t b = 0; b < batch_size; ++b) {
    const auto count = result.const_data_ptr<int64_t>()[b];
    TORCH_ATTENTION_CHECK(
        count >= 0 && count <= most,
        "{}: expected {} in [0, {}], but got {} for sequence {}",
        name,
        what,
        most,
        count,
        b);
  }
  return result;
}

void check_not_packed(const char* name, const torch::Tensor& cu_seqlens) {
  TORCH_ATTENTION_CHECK(
      !cu_seqlens.defined(),
      "{}: expected one sequence or a padded batch, but got cu_seqlens; "
      "the weights of sequences of different lengths are no tensor",
      name);
}

namespace {

/// Returns a copy of integers (N), int64 on the CPU. A tensor that torch.func
/// wraps has no memory, so its elements are read one by one.
torch::Tensor copied_numbers(const torch::Tensor& x) {
  if (!at::isTensorSubclassLike(x)) {
    return to_int64(x)
        .to(torch::TensorOptions(torch::kCPU),
            /*non_blocking=*/false,
            /*copy=*/true)
        .contiguous();
  }
  // Not by an operator, whose result torch.func would wrap as well.
  auto result = at::detail::empty_cpu(x.sizes(), torch::kLong);
  auto* number = result.mutable_data_ptr<int64_t>();
  for (int64_t i = 0; i < x.size(0); ++i) {
    number[i] = to_int64(x[i]).item<int64_t>();
  }
  return result;
}

} // namespace

torch::Tensor to_starts(
    const char* name,
    const char* what,
    const torch::Tensor& cu_seqlens,
    int64_t num_tokens) {
  check_has_numbers(name, what, cu_seqlens);
  TORCH_ATTENTION_CHECK(
      has_integers(cu_seqlens) && cu_seqlens.dim() == 1 &&
          cu_seqlens.size(0) > 0,
      "{}: expected {} of an integer dtype and shape (B + 1), but got {} "
      "of shape {}",
      name,
      what,
      cu_seqlens.scalar_type(),
      cu_seqlens.sizes());
  TORCH_ATTENTION_CHECK(
      !kernels::is_traced(),
      "{}: expected no {} in a trace, which would keep these sequences "
      "for all inputs; torch.ops.torch_attention.attention can be traced "
      "with them",
      name,
      what);
  // A copy, since the backward pass reads it, and the caller may change the
  // tensor before.
  const auto starts = copied_numbers(cu_seqlens);
  const auto* start = starts.const_data_ptr<int64_t>();
  const auto last = starts.size(0) - 1;
  TORCH_ATTENTION_CHECK(
      start[0] == 0 && start[last] == num_tokens,
      "{}: expected {} from 0 to the number of tokens, {}, but got {} to {}",
      name,
      what,
      num_tokens,
      start[0],
      start[last]);
  for (int64_t i = 0; i < last; ++i) {
    TORCH_ATTENTION_CHECK(
        start[i] <= start[i + 1],
        "{}: expected {} that do not decrease, but got {}, then {} at {}",
        name,
        what,
        start[i],
        start[i + 1],
        i + 1);
  }
  return starts;
}

void check_sequences(
    const char* name,
    const char* what,
    const char* size_name,
    const torch::Tensor& x,
    const torch::Tensor& weight,
    int64_t size,
    bool takes_2d) {
  TORCH_ATTENTION_CHECK(x.defined(), "{}: the {} is undefined", name, what);
  check_dense(name, what, x);
  TORCH_ATTENTION_CHECK(
      x.dim() == 3 || (takes_2d && x.dim() == 2),
      "{}: expected {} of shape {}{}), but got {}",
      name,
      what,
      takes_2d ? "(T, " : "(B, T, ",
      size,
      x.sizes());
  TORCH_ATTENTION_CHECK(
      x.size(-1) == size,
      "{}: expected {} whose last dimension is {} = {}, but got shape {}",
      name,
      what,
      size_name,
      size,
      x.sizes());
  check_floating(name, "", what, x);
  TORCH_ATTENTION_CHECK(
      x.device() == weight.device(),
      "{}: expected {} on {}, where the weights are, but got {} on {}",
      name,
      what,
      weight.device(),
      what,
      x.device());
  // Under autocast the projections cast both.
  TORCH_ATTENTION_CHECK(
      x.scalar_type() == weight.scalar_type() ||
          (at::autocast::is_autocast_available(x.device().type()) &&
           at::autocast::is_autocast_enabled(x.device().type())),
      "{}: expected {} of dtype {}, that of the weights, but got {}",
      name,
      what,
      weight.scalar_type(),
      x.scalar_type());
  check_can_be_saved(name, {&x, &weight});
}

void check_input(
    const char* name,
    const torch::Tensor& x,
    const torch::Tensor& weight,
    int64_t d_in,
    bool takes_2d) {
  check_sequences(name, "input", "d_in", x, weight, d_in, takes_2d);
}

} // namespace torch_attention::checks
