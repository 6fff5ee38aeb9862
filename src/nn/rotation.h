#pragma once

#include <torch/types.h>

#include <torch_attention/nn/options/rotary.h>

#include <cstdint>
#include <mutex>

/// Rotary position embedding in its steps: angles, then the rotation.
namespace torch_attention::detail {

/// Cosines and sines of the angles of tokens, float32; `pairs` is half the
/// rotated part of a head.
struct Rotation {
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

/// Positions int64 (..., T) -> (..., T, pairs), on their device.
Rotation rotation_at(
    const torch::Tensor& positions,
    const RotaryOptions& options,
    int64_t head_dim);

/// Rotates x (..., T, D); `rotation` broadcasts to it.
torch::Tensor rotate(
    const torch::Tensor& x,
    const Rotation& rotation,
    RotaryPairing pairing);

/// The rotations of positions 0, 1, ... of one module, computed when first
/// asked for. Any number of threads may ask.
class RotaryTable {
 public:
  RotaryTable(RotaryOptions options, int64_t head_dim);

  /// Of T tokens of each sequence, whose first one's position is in `first`,
  /// int64 (B) on the CPU: (T, pairs) if it is the same for all, else (B, 1, T,
  /// pairs). Undefined `first` means 0.
  Rotation at(const torch::Tensor& first, int64_t T, torch::Device device);

  /// Of tokens at `positions`, int64 (T) or (B, T), none negative: (T, pairs)
  /// or (B, 1, T, pairs).
  Rotation at_positions(const torch::Tensor& positions, torch::Device device);

  const RotaryOptions& options() const {
    return options_;
  }

 private:
  /// Of at least the positions before `length`.
  Rotation up_to(int64_t length, torch::Device device);

  RotaryOptions options_;
  int64_t head_dim_;
  std::mutex mutex_;
  Rotation table_;
};

} // namespace torch_attention::detail
