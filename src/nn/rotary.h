#pragma once

#include <torch/types.h>

#include <torch_attention/nn/options/attention.h>
#include <torch_attention/nn/options/rotary.h>

#include <array>
#include <cstdint>
#include <mutex>
#include <optional>

/// Rotary position embedding in two steps: the angles of positions, then the
/// rotation of heads by them.
namespace torch_attention::detail {

/// Cosines and sines of the angles of tokens, float32; `pairs` is half the
/// rotated part of a head.
struct RotaryAngles {
  /// (..., T, pairs)
  torch::Tensor cos;
  /// (..., T, pairs)
  torch::Tensor sin;
};

/// `name` is the class or function that the messages name.
void check_rotary(
    const char* name,
    const RotaryOptions& options,
    int64_t head_dim);

/// The position after the highest one; 0 if there is none.
int64_t end_of(const torch::Tensor& positions);

/// Positions of an integer dtype (..., T) -> (..., T, pairs), on their device.
/// The text is `length` tokens long; default: up to the highest of them.
RotaryAngles rotary_angles_at(
    const torch::Tensor& positions,
    const RotaryOptions& options,
    int64_t head_dim,
    const std::optional<int64_t>& length = std::nullopt);

/// Rotates x (..., T, D); `angles` broadcast to it.
torch::Tensor rotate(
    const torch::Tensor& x,
    const RotaryAngles& angles,
    RotaryPairing pairing,
    Kernel kernel);

/// The angles of positions 0, 1, ... of one module, computed when first
/// requested, from any thread.
class RotaryTable {
 public:
  RotaryTable(RotaryOptions options, int64_t head_dim);

  /// Returns the angles of T tokens of each sequence, the first of which is
  /// at position `first`, int64 (B) on the CPU: (T, pairs) if it is the same
  /// for all, else (B, 1, T, pairs). Undefined `first` means 0. The longest
  /// text is `length` tokens long, if some of the T are padding; default: up to
  /// the last of them.
  RotaryAngles at(
      const torch::Tensor& first,
      int64_t T,
      torch::Device device,
      const std::optional<int64_t>& length = std::nullopt);

  /// Returns the angles of tokens at `positions`, int64 (T) or (B, T), none
  /// negative: (T, pairs) or (B, 1, T, pairs). The longest text is `length`
  /// tokens long; default: up to the highest of them.
  RotaryAngles at_positions(
      const torch::Tensor& positions,
      torch::Device device,
      const std::optional<int64_t>& length = std::nullopt);

  const RotaryOptions& options() const {
    return options_;
  }

  /// Returns whether long texts are rotated otherwise than short ones.
  bool changes_with_length() const;

  /// Half the rotated part of a head.
  int64_t pairs() const {
    return options_.dim().value_or(head_dim_) / 2;
  }

 private:
  /// Returns the angles of tokens at `positions` in a text of `length`
  /// tokens: from the table of the first `rows`, or computed if there is none.
  RotaryAngles gathered(
      const torch::Tensor& positions,
      const std::optional<int64_t>& rows,
      int64_t length,
      torch::Device device);

  /// Returns the angles of at least the first `rows` positions, in a text of
  /// `length` tokens.
  RotaryAngles up_to(int64_t rows, int64_t length, torch::Device device);

  RotaryOptions options_;
  int64_t head_dim_;
  std::mutex mutex_;
  /// For short texts, and for those that rotate otherwise.
  std::array<RotaryAngles, 2> tables_;
};

} // namespace torch_attention::detail
