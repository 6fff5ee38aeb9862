#pragma once

#include <tools/measure.h>

#include <torch/types.h>

#include <cstdint>
#include <functional>
#include <string>

namespace torch_attention::benchmarks {

/// The resource that bounds the time of a work from below.
enum class Bound {
  /// Floating-point operations; LibTorch's sgemm is their roof.
  kProducts,
  /// Bytes read from memory.
  kReading,
};

/// The best that this machine can do for work of each kind, by LibTorch's own
/// operations in float32. A share of the roof holds for this number of threads.
class Roof {
 public:
  Roof();

  /// Returns the work that reaches the roof, done once: it is measured
  /// interleaved with the work that is compared to it.
  std::function<void()> reach(Bound bound) const;

  /// Returns the FLOPs or bytes of `reach`.
  double amount(Bound bound) const;

  /// Returns the FLOP/s of the product of square matrices, of the size that
  /// gives most, by LibTorch's MKL (`at::mm`) or its oneDNN, whichever gives
  /// more.
  tools::Spread products() const;

  /// Returns the bytes/s read by the sum of a vector or a matrix times a
  /// vector, whichever gives more. Both are much larger than the caches.
  tools::Spread reading() const;

  /// Returns the bytes/s of a = b + s c (STREAM's triad): two read, one
  /// written.
  tools::Spread triad() const;

  /// Returns how `products` are reached, such as "at::mm, 1024 rows".
  std::string product() const;

 private:
  void choose_product();

  int64_t size_ = 0;
  std::string name_;
  std::function<void()> multiply_;
  torch::Tensor matrix_, vector_, result_;
  bool sum_reads_faster_ = true;
};

} // namespace torch_attention::benchmarks
