#pragma once

#include <kernels/attention.h>
#include <kernels/small_module.h>
#include <torch_attention/nn/options/attention.h>

/// The choice of the kernel; nothing else decides it. docs/kernels.md has the
/// table:
///
/// - `small_module`: a whole MultiHeadAttention of at most 8192
///   multiplications, in float32 or float64 on the CPU, that only projects,
///   scales and hides, without dropout, unless kReference is requested or
///   `same_bits` is set.
/// - `tiled`: tensors in the CPU's memory that are not traced or vmapped and
///   carry no forward derivatives, unless kReference is requested. Even for
///   kReference, without dropout, it computes inputs that are not finite.
/// - `libtorch`: other tensors without softcap, sinks and forward derivatives;
///   on the CPU with dropout only for kFused.
/// - `reference`: kReference; weights to be returned; empty tensors; the meta
///   device; a single key that `tiled` does not take; the rest.
namespace torch_attention::kernels {

enum class Choice { kTiled, kLibTorch, kReference };

/// Returns the kernel that the user requested: `default_kernel` instead of
/// kAuto.
Kernel resolved(Kernel asked);

/// Returns the kernel for `attention` if the user requested `asked`.
Choice choose(const Attention& attention, Kernel asked);

/// Returns whether the kernel for `attention`, if the user requested `asked`,
/// reads keys and values in blocks (`Attention::blocks`): `tiled`, where
/// autograd and autocast have nothing to do.
bool reads_blocks(const Attention& attention, Kernel asked);

/// Returns the output (..., T, Dv).
torch::Tensor compute(Choice choice, const Attention& attention);

/// Returns whether `small_module` computes `module`.
bool takes_module(const ModuleAttention& module, Kernel asked);

} // namespace torch_attention::kernels
