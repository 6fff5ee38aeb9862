#pragma once

#include <torch/arg.h>

#include <torch_attention/export.h>

#include <iosfwd>

namespace torch_attention {

/// The mean that a `HeadNorm` divides by.
enum class HeadNormKind {
  /// x / sqrt(mean(x^2) + eps) (Zhang and Sennrich 2019, "Root Mean Square
  /// Layer Normalization").
  kRms,
  /// (x - mean(x)) / sqrt(var(x) + eps) (Ba et al. 2016, "Layer
  /// Normalization").
  kLayer,
};

/// The numbers that a `HeadNorm` normalises together, and the shape of its
/// weights, for H heads of size D.
enum class HeadNormScope {
  /// Each head by itself; all share weights (D). Qwen 3, Gemma 3.
  kHead,
  /// Each head by itself, with weights of its own (H, D). Cohere, Chameleon.
  kHeadWeights,
  /// All heads of a token together; weights (H * D). OLMo 2.
  kAllHeads,
};

/// Prints `rms` or `layer`.
TORCH_ATTENTION_API std::ostream& operator<<(
    std::ostream& stream,
    HeadNormKind kind);

/// Prints `head`, `head_weights` or `all_heads`.
TORCH_ATTENTION_API std::ostream& operator<<(
    std::ostream& stream,
    HeadNormScope scope);

/// Options for `HeadNorm`, which normalises queries or keys before their
/// products (Henry et al. 2020, "Query-Key Normalization for Transformers").
///
/// Example, as in Qwen 3:
/// ```
/// options.qk_norm(HeadNormOptions(HeadNormKind::kRms).eps(1e-6));
/// ```
struct TORCH_ATTENTION_API HeadNormOptions {
  explicit HeadNormOptions(HeadNormKind kind = HeadNormKind::kRms);

  /// Default: HeadNormKind::kRms
  TORCH_ARG(HeadNormKind, kind);

  /// Default: HeadNormScope::kHead
  TORCH_ARG(HeadNormScope, scope) = HeadNormScope::kHead;

  /// added to the mean square or variance. Default: 1e-6
  TORCH_ARG(double, eps) = 1e-6;

  /// multiply by a learned `weight`, one at first. Without it a kRms is what
  /// Llama 4 calls an L2 norm, and has `after_rotary`. Default: true
  TORCH_ARG(bool, weight) = true;

  /// the factor is 1 + `weight`, which is zero at first, as in Gemma. Default:
  /// false
  TORCH_ARG(bool, unit_offset) = false;

  /// add a learned `bias`, zero at first. Default: false
  TORCH_ARG(bool, bias) = false;

  /// normalise after the rotary embedding instead of before it. Default: false
  TORCH_ARG(bool, after_rotary) = false;
};

} // namespace torch_attention
