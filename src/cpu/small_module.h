#pragma once

#include <torch_attention/nn/options/score_rule.h>

#include <cstdint>

/// Multi-head attention with its projections on few numbers, for which the call
/// of each tensor operator would take longer than its work: plain loops on one
/// thread. It takes pointers and sizes only; no LibTorch.
///
/// Sizes: B batch, T tokens, H query heads, G key/value heads (H is a multiple
/// of G), D head_dim. All tensors are contiguous.
namespace torch_attention::cpu {

/// y = x W^T + b: weight (out, in), bias (out) or null.
template <typename Pointer>
struct Projection {
  Pointer weight = nullptr;
  Pointer bias = nullptr;
};

/// The four projections of a module; `out` has no weight if there is none.
template <typename Pointer>
struct Projections {
  Projection<Pointer> query; // (H * D, d_in)
  Projection<Pointer> key; // (G * D, d_in)
  Projection<Pointer> value; // (G * D, d_in)
  Projection<Pointer> out; // (d_out, H * D)
};

/// A module and its input. X is float or double.
template <typename X>
struct SmallModule {
  int64_t batch_size = 0;
  int64_t num_tokens = 0;
  int64_t d_in = 0;
  int64_t num_heads = 0;
  int64_t num_kv_heads = 0;
  int64_t head_dim = 0;
  /// H * D if there is no `out`
  int64_t d_out = 0;
  /// A rule that only scales and hides.
  ScoreRule rule;
  /// (B, T, d_in)
  const X* x = nullptr;
  Projections<const X*> projections;
};

/// Returns the number of multiply-adds of the forward pass.
template <typename X>
int64_t work_of(const SmallModule<X>& module);

/// Computes the output (B, T, d_out).
template <typename X>
void forward(const SmallModule<X>& module, X* output);

/// Computes the gradients for `grad_output` (B, T, d_out), and overwrites what
/// they hold. Gradients that are not wanted are null.
template <typename X>
void backward(
    const SmallModule<X>& module,
    const X* grad_output,
    X* grad_x,
    const Projections<X*>& gradients);

} // namespace torch_attention::cpu
