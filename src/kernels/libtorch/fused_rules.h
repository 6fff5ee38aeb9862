#pragma once

#include <kernels/attention.h>

#include <optional>

/// The attention that LibTorch's fused kernels compute without a tensor of (T,
/// S) elements and without copies of grouped keys.
namespace torch_attention::kernels {

/// Returns whether `by_fused_kernels` computes `attention`, packed or not.
bool has_fused_rules(const Attention& attention);

/// Returns whether LibTorch would compute `attention`, which hides no keys, by
/// a kernel that knows grouped heads.
bool takes_groups(const Attention& attention);

/// Returns whether LibTorch would compute `attention`, of four dimensions, by a
/// kernel that adds products in float32, whatever mask it gets.
bool sums_in_float(const Attention& attention);

/// Returns the output of `attention`, whose query is (B, H, T, D), key (B, G,
/// S, D) and value (B, G, S, Dv). Nothing: other kernels have to compute it.
std::optional<torch::Tensor> by_fused_kernels(const Attention& attention);

} // namespace torch_attention::kernels
