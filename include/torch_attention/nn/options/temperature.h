#pragma once

#include <torch/arg.h>

#include <torch_attention/export.h>

#include <cstdint>

namespace torch_attention {

/// Options for a temperature by position, which keeps attention to many keys
/// sharp (after Nakanishi 2025, "Scalable-Softmax Is Superior for Attention"):
/// the query at position p is multiplied by
/// 1 + scale * log(1 + floor((p + offset) / floor_scale)),
/// after norm and rotary embedding.
///
/// Example, as in layers of Llama 4 without rotary embedding:
/// ```
/// options.temperature(TemperatureOptions(/*floor_scale=*/8192).scale(0.1));
/// ```
struct TORCH_ATTENTION_API TemperatureOptions {
  explicit TemperatureOptions(int64_t floor_scale);

  /// positions from one step of the factor to the next.
  TORCH_ARG(int64_t, floor_scale);

  /// Default: 0.1
  TORCH_ARG(double, scale) = 0.1;

  /// added to positions: 1 in Llama 4, 0 in Ministral 3. Default: 1
  TORCH_ARG(int64_t, offset) = 1;

  /// the tokens are counted in the order in which they come, whatever
  /// `ForwardOptions().positions` says, as Llama 4 does it: then padding before
  /// them counts, too. Default: false
  TORCH_ARG(bool, by_order) = false;
};

} // namespace torch_attention
