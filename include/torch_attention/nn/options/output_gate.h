#pragma once

#include <torch/arg.h>

#include <torch_attention/export.h>

#include <iosfwd>
#include <optional>

namespace torch_attention {

/// Selects how many numbers gate a head.
enum class GateScope {
  /// One number for each element of a head's context. Qwen3-Next.
  kElement,
  /// One number for all elements of a head. LFM 3.
  kHead,
};

/// Selects the function that makes a gate of the projection.
enum class GateFunction {
  /// 1 / (1 + exp(-x)), from 0 to 1.
  kSigmoid,
  /// log(1 + exp(x)), from 0 on, computed in float32 for half precision.
  /// Laguna.
  kSoftplus,
};

/// Prints `element` or `head`.
TORCH_ATTENTION_API std::ostream& operator<<(
    std::ostream& stream,
    GateScope scope);

/// Prints `sigmoid` or `softplus`.
TORCH_ATTENTION_API std::ostream& operator<<(
    std::ostream& stream,
    GateFunction function);

/// Options for the gate of a module's context: the heads' context is multiplied
/// by function(W_gate(x)) before `out_proj` (Qiu et al. 2025, "Gated Attention
/// for Large Language Models").
///
/// Example, as in Qwen3-Next and in LFM 3:
/// ```
/// options.output_gate(OutputGateOptions());
/// options.output_gate(OutputGateOptions(GateScope::kHead).bias(false));
/// ```
struct TORCH_ATTENTION_API OutputGateOptions {
  explicit OutputGateOptions(GateScope scope = GateScope::kElement);

  /// whether a head has one gate, or one for each element.
  /// Default: GateScope::kElement
  TORCH_ARG(GateScope, scope);

  /// function of the projection. Default: GateFunction::kSigmoid
  TORCH_ARG(GateFunction, function) = GateFunction::kSigmoid;

  /// add a bias to `W_gate`. Default: the query projection's
  TORCH_ARG(std::optional<bool>, bias) = std::nullopt;
};

} // namespace torch_attention
