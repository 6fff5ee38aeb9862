#pragma once

#include <torch_attention/nn/options/score_rule.h>

#include <torch/types.h>

#include <cstdint>

/// Checks of the options and inputs of modules and functions. `name` is the one
/// that the messages name.
namespace torch_attention::checks {

void check_positive(const char* name, const char* option, int64_t value);

/// In [0, 1].
void check_dropout(const char* name, double dropout);

/// Finite and >= 0.
void check_eps(const char* name, double eps);

/// Checks the numbers of a rule, and that those which hide keys fit together.
void check_rule(const char* name, const ScoreRule& rule);

/// Checks a rule of attention that has no positions: it hides no keys by them.
void check_rule_without_positions(const char* name, const ScoreRule& rule);

/// Checks that x is one dense tensor: not sparse, nested, quantized or
/// oneDNN's. `what` names it, as in "a dense query".
void check_dense(const char* name, const char* what, const torch::Tensor& x);

/// Checks that x, which may be on another device than `device`, where it is to
/// be used, is dense and brings its numbers along: a tensor on the device meta
/// has none.
void check_has_numbers(
    const char* name,
    const char* what,
    const torch::Tensor& x,
    torch::Device device = torch::kCPU);

/// Checks that x is of a dtype that attention is computed in: float32, float64,
/// bfloat16 or float16. `article` is "a " or "".
void check_floating(
    const char* name,
    const char* article,
    const char* what,
    const torch::Tensor& x);

/// Checks that autograd, if it is to record what is computed from `tensors`,
/// some of which may be undefined, can save them.
void check_can_be_saved(
    const char* name,
    c10::ArrayRef<const torch::Tensor*> tensors);

/// Returns true if x holds integers, of any size, signed or not.
bool has_integers(const torch::Tensor& x);

/// Returns integers as int64; values of uint64 beyond its range become its
/// largest.
torch::Tensor to_int64(const torch::Tensor& integers);

/// `counts`, an integer tensor (batch_size), as int64 on the CPU, if each is in
/// [0, most]. Undefined stays undefined.
torch::Tensor to_counts(
    const char* name,
    const char* what,
    const torch::Tensor& counts,
    int64_t batch_size,
    int64_t most);

/// Checks that there are no `cu_seqlens` where weights are asked for.
void check_not_packed(const char* name, const torch::Tensor& cu_seqlens);

/// `cu_seqlens`, an integer tensor (B + 1) that grows from 0 to `num_tokens`,
/// as int64 on the CPU.
torch::Tensor to_starts(
    const char* name,
    const char* what,
    const torch::Tensor& cu_seqlens,
    int64_t num_tokens);

/// Checks that x, which `what` names, is (B, T, size), or (T, size) if
/// `takes_2d`, and of the dtype and on the device of `weight`. `size_name` is
/// the option that says the size.
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
