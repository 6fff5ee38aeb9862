#pragma once

#include <torch/types.h>

#include <cstdint>
#include <string>

namespace gpt {

/// The bytes of a text, in sequences for training.
///
/// The last tenth is held out for validation. Of the rest, each epoch has all
/// windows of `context_length` bytes, one after the other from an offset, in a
/// new order; both are drawn from `seed` and the epoch. So sequence n is known
/// without those before it, and training can go on from any step.
class TextData {
 public:
  /// Throws c10::Error if the file cannot be read, or is too short.
  TextData(const std::string& path, int64_t context_length, uint64_t seed);

  struct Batch {
    torch::Tensor ids; // (B, T), int64
    torch::Tensor next; // (B, T): the byte after each
  };

  /// Returns the sequences first, ..., first + count - 1 of training.
  Batch training(int64_t first, int64_t count) const;

  /// Returns `count` sequences of the part held out, or all if it has fewer,
  /// spread evenly and always the same.
  Batch validation(int64_t count) const;

  /// Number of sequences of an epoch.
  int64_t size() const {
    return size_;
  }

  /// Tells texts from each other: FNV-1a of all bytes.
  uint32_t checksum() const {
    return checksum_;
  }

 private:
  /// The windows that start at `starts` of a part.
  Batch windows(const torch::Tensor& part, const torch::Tensor& starts) const;

  int64_t context_length_;
  uint64_t seed_;
  torch::Tensor training_;
  torch::Tensor held_out_;
  int64_t size_;
  uint32_t checksum_;
};

} // namespace gpt
