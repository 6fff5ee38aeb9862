#pragma once

#include <torch/arg.h>

#include <torch_attention/export.h>

#include <iosfwd>

namespace torch_attention {

/// Selects the normalisation of a `HeadNorm`.
enum class HeadNormKind {
  /// x / sqrt(mean(x^2) + eps) (Zhang and Sennrich 2019, "Root Mean Square
  /// Layer Normalization").
  kRms,
  /// (x - mean(x)) / sqrt(var(x) + eps) (Ba et al. 2016, "Layer
  /// Normalization").
  kLayer,
};

/// Selects the elements that a `HeadNorm` normalises together, and the shape of
/// its weights, for H heads of size D.
enum class HeadNormScope {
  /// Each head separately, with weights (D) for all heads. Qwen 3, Gemma 3.
  kHead,
  /// Each head separately, with weights (H, D) per head. Cohere, Chameleon.
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

/// Options for `HeadNorm`, which normalises queries or keys before attention
/// (Henry et al. 2020, "Query-Key Normalization for Transformers").
///
/// Example, as in Qwen 3:
/// ```
/// options.qk_norm(HeadNormOptions(HeadNormKind::kRms).eps(1e-6));
/// ```
struct TORCH_ATTENTION_API HeadNormOptions {
  explicit HeadNormOptions(HeadNormKind kind = HeadNormKind::kRms);

  /// RMS norm or layer norm. Default: HeadNormKind::kRms
  TORCH_ARG(HeadNormKind, kind);

  /// elements that are normalised together. Default: HeadNormScope::kHead
  TORCH_ARG(HeadNormScope, scope) = HeadNormScope::kHead;

  /// added to the mean square or variance. Default: 1e-6
  TORCH_ARG(double, eps) = 1e-6;

  /// multiply by a learned `weight`, initially 1. kRms without weight is the L2
  /// norm of Llama 4, which also sets `after_rotary`. Default: true
  TORCH_ARG(bool, weight) = true;

  /// multiply by 1 + `weight`, which is initially 0, as in Gemma. Default:
  /// false
  TORCH_ARG(bool, unit_offset) = false;

  /// add a learned `bias`, initially 0. Default: false
  TORCH_ARG(bool, bias) = false;

  /// normalise after the rotary embedding instead of before it. Default: false
  TORCH_ARG(bool, after_rotary) = false;
};

} // namespace torch_attention
