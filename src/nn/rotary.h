#pragma once

#include <torch/types.h>

#include <torch_attention/nn/options/attention.h>
#include <torch_attention/nn/options/rotary.h>

#include <array>
#include <cstdint>
#include <mutex>
#include <optional>

/// Rotary position embedding in two steps: angles of positions, and rotation of
/// heads by them.
namespace torch_attention::detail {

/// Cosines and sines of the angles of tokens, float32, both (..., T, pairs),
/// where `pairs` is half the number of rotated elements of a head.
struct RotaryAngles {
  torch::Tensor cos;
  torch::Tensor sin;
};

/// Checks the options; `name` is the class or function named in messages.
void check_rotary(
    const char* name,
    const RotaryOptions& options,
    int64_t head_dim);

/// Returns the highest position + 1; 0 without positions.
int64_t end_of(const torch::Tensor& positions);

/// Returns the angles of `positions`, integers (..., T): (..., T, pairs), on
/// the same device. `length` is the length of the sequence, for scalings that
/// depend on it; default: `end_of(positions)`.
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

/// A cache of the angles of positions 0, 1, ... for one module. Thread-safe.
class RotaryTable {
 public:
  RotaryTable(RotaryOptions options, int64_t head_dim);

  /// Returns the angles of T tokens of each sequence from position `first` on,
  /// int64 (B) on the CPU, or undefined for 0: (T, pairs) if all sequences have
  /// the same `first`, else (B, 1, T, pairs). `length` is the length of the
  /// longest sequence, if some tokens are padding; default: all T tokens count.
  RotaryAngles at(
      const torch::Tensor& first,
      int64_t T,
      torch::Device device,
      const std::optional<int64_t>& length = std::nullopt);

  /// Returns the angles of `positions`, int64 (T) or (B, T), none negative:
  /// (T, pairs) or (B, 1, T, pairs). `length` is the length of the longest
  /// sequence; default: `end_of(positions)`.
  RotaryAngles at_positions(
      const torch::Tensor& positions,
      torch::Device device,
      const std::optional<int64_t>& length = std::nullopt);

  const RotaryOptions& options() const {
    return options_;
  }

  /// Returns whether the angles depend on the length of the sequence.
  bool changes_with_length() const;

  /// Returns half the number of rotated elements of a head.
  int64_t pairs() const {
    return options_.dim().value_or(head_dim_) / 2;
  }

 private:
  /// Returns the angles of `positions` in a sequence of `length` tokens: read
  /// from the table of the first `rows` positions, or computed without `rows`.
  RotaryAngles gathered(
      const torch::Tensor& positions,
      const std::optional<int64_t>& rows,
      int64_t length,
      torch::Device device);

  /// Returns the angles of at least the first `rows` positions, in a sequence
  /// of `length` tokens.
  RotaryAngles up_to(int64_t rows, int64_t length, torch::Device device);

  RotaryOptions options_;
  int64_t head_dim_;
  std::mutex mutex_;
  /// For short and for long sequences.
  std::array<RotaryAngles, 2> tables_;
};

} // namespace torch_attention::detail
