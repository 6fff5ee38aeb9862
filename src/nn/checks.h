#pragma once

#include <torch_attention/nn/options/score_rule.h>

#include <torch/types.h>

#include <cstdint>

/// Checks of the options and inputs of modules and functions. They throw
/// c10::Error with a message that begins with `name`, the module or function.
namespace torch_attention::checks {

void check_positive(const char* name, const char* option, int64_t value);

/// Checks that `dropout` is in [0, 1].
void check_dropout(const char* name, double dropout);

/// Checks that `eps` is finite and >= 0.
void check_eps(const char* name, double eps);

/// Checks the fields of a rule, and that causal, windows and chunks can be
/// combined.
void check_rule(const char* name, const ScoreRule& rule);

/// Checks a rule that must not hide keys by their positions.
void check_rule_without_positions(const char* name, const ScoreRule& rule);

/// Checks that x is dense: not sparse, nested, quantized or oneDNN's. `what`
/// names it, as in "a dense query".
void check_dense(const char* name, const char* what, const torch::Tensor& x);

/// Checks that x is dense and has data that can be copied to `device`; a tensor
/// on the meta device has none.
void check_has_numbers(
    const char* name,
    const char* what,
    const torch::Tensor& x,
    torch::Device device = torch::kCPU);

/// Checks that x is float32, float64, bfloat16 or float16. `article`, "a " or
/// "", precedes "floating-point" in the message.
void check_floating(
    const char* name,
    const char* article,
    const char* what,
    const torch::Tensor& x);

/// Checks that autograd can save `tensors`, some of which may be undefined, if
/// one of them requires a gradient.
void check_can_be_saved(
    const char* name,
    c10::ArrayRef<const torch::Tensor*> tensors);

/// Returns whether the dtype is an integer type, signed or unsigned; not bool.
bool has_integers(const torch::Tensor& x);

/// Returns integers as int64; larger values of uint64 become the largest int64.
torch::Tensor to_int64(const torch::Tensor& integers);

/// Checks that `counts` are an integer tensor (batch_size), without reading
/// them.
void check_counts(
    const char* name,
    const char* what,
    const torch::Tensor& counts,
    int64_t batch_size);

/// Checks `counts`, an integer tensor (batch_size) with values in [0, most] or
/// undefined. Returns it as int64 on the CPU, or undefined.
torch::Tensor to_counts(
    const char* name,
    const char* what,
    const torch::Tensor& counts,
    int64_t batch_size,
    int64_t most);

/// Checks that `cu_seqlens` is undefined, for functions that return weights.
void check_not_packed(const char* name, const torch::Tensor& cu_seqlens);

/// Checks `cu_seqlens`, an integer tensor (B + 1) that grows from 0 to
/// `num_tokens`. Returns a copy, int64 on the CPU.
torch::Tensor to_starts(
    const char* name,
    const char* what,
    const torch::Tensor& cu_seqlens,
    int64_t num_tokens);

/// Checks that x, which `what` names, is (B, T, size), or (T, size) if
/// `takes_2d`, and of the dtype and on the device of `weight`. `size_name` is
/// the option with the size.
void check_sequences(
    const char* name,
    const char* what,
    const char* size_name,
    const torch::Tensor& x,
    const torch::Tensor& weight,
    int64_t size,
    bool takes_2d = false);

/// Checks that x is (B, T, d_in), or (T, d_in) if `takes_2d`, and of the dtype
/// and on the device of `weight`.
void check_input(
    const char* name,
    const torch::Tensor& x,
    const torch::Tensor& weight,
    int64_t d_in,
    bool takes_2d = false);

} // namespace torch_attention::checks
