#pragma once

#include <torch/arg.h>

#include <torch_attention/export.h>

#include <cstdint>

namespace torch_attention {

/// Options for a temperature that grows with the position, which keeps
/// attention to many keys sharp (after Nakanishi 2025, "Scalable-Softmax Is
/// Superior for Attention"). After norm and rotary embedding, the query at
/// position p is multiplied by
///   1 + scale * log(1 + floor((p + offset) / floor_scale)).
///
/// Example, as in layers of Llama 4 without rotary embedding:
/// ```
/// options.temperature(TemperatureOptions(/*floor_scale=*/8192).scale(0.1));
/// ```
struct TORCH_ATTENTION_API TemperatureOptions {
  explicit TemperatureOptions(int64_t floor_scale);

  /// number of positions between two steps of the factor.
  TORCH_ARG(int64_t, floor_scale);

  /// factor of the logarithm. Default: 0.1
  TORCH_ARG(double, scale) = 0.1;

  /// added to positions: 1 in Llama 4, 0 in Ministral 3. Default: 1
  TORCH_ARG(int64_t, offset) = 1;

  /// use the indices of the tokens instead of `ForwardOptions().positions`, as
  /// Llama 4 does, so that padding before them counts. Default: false
  TORCH_ARG(bool, by_order) = false;
};

} // namespace torch_attention
