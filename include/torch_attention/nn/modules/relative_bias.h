#pragma once

#include <torch/nn/cloneable.h>
#include <torch/nn/pimpl.h>
#include <torch/types.h>

#include <torch_attention/export.h>
#include <torch_attention/nn/options/relative_bias.h>

#include <cstdint>
#include <iosfwd>

namespace torch_attention {

/// A learned bias of the scores that depends on the distance between query and
/// key (Raffel et al. 2020, "Exploring the Limits of Transfer Learning with a
/// Unified Text-to-Text Transformer"): one bucket per small distance, and
/// buckets on a logarithmic scale for larger ones. Layers may share a module.
/// Its weight is `relative_attention_bias.weight`, in T5 of the first layer's
/// attention, in MPNet of the encoder.
///
/// Example:
/// ```
/// RelativeBias bias(RelativeBiasOptions(/*num_heads=*/8));
/// const auto T = x.size(1);
/// auto context = attention->forward(x, ForwardOptions().bias(bias(T, T)));
/// ```
class TORCH_ATTENTION_API RelativeBiasImpl
    : public torch::nn::Cloneable<RelativeBiasImpl> {
 public:
  explicit RelativeBiasImpl(int64_t num_heads);
  explicit RelativeBiasImpl(const RelativeBiasOptions& options_);

  void reset() override;
  /// Draws from N(0, 0.02^2).
  void reset_parameters();
  void pretty_print(std::ostream& stream) const override;

  /// Returns the bias of the T queries at the positions from `first` on and the
  /// keys 0 to S - 1: (1, num_heads, T, S), of the dtype and on the device of
  /// `weight`.
  ///
  /// Throws c10::Error for negative sizes.
  torch::Tensor forward(int64_t T, int64_t S, int64_t first = 0);

  /// The options with which this `Module` was constructed.
  RelativeBiasOptions options;

  /// (num_buckets, num_heads)
  torch::Tensor weight;
};

/// A `ModuleHolder` for `RelativeBiasImpl`.
TORCH_MODULE(RelativeBias);

/// A learned bias of the scores within a window of height x width tokens, which
/// depends on the distance between query and key in rows and columns (Liu et
/// al. 2021, "Swin Transformer"). Its parameter is named as in Swin.
///
/// Example:
/// ```
/// WindowBias bias(WindowBiasOptions(/*num_heads=*/3, 7, 7));
/// auto context = attention->forward(windows, ForwardOptions().bias(bias()));
/// ```
class TORCH_ATTENTION_API WindowBiasImpl
    : public torch::nn::Cloneable<WindowBiasImpl> {
 public:
  WindowBiasImpl(int64_t num_heads, int64_t height, int64_t width);
  explicit WindowBiasImpl(const WindowBiasOptions& options_);

  void reset() override;
  /// Draws from N(0, 0.02^2).
  void reset_parameters();
  void pretty_print(std::ostream& stream) const override;

  /// Returns the bias (1, num_heads, N, N) of the N = height * width tokens,
  /// row by row.
  torch::Tensor forward();

  /// The options with which this `Module` was constructed.
  WindowBiasOptions options;

  /// ((2 height - 1) * (2 width - 1), num_heads)
  torch::Tensor relative_position_bias_table;
};

/// A `ModuleHolder` for `WindowBiasImpl`.
TORCH_MODULE(WindowBias);

} // namespace torch_attention
