#pragma once

#include <torch_attention/nn/options/rotary.h>

#include <cstdint>
#include <string>

// Rotary embeddings that a model reads from its file, where most compute them.

namespace torch_attention::weights::pretrained {

/// The ends of the names of tensors; empty for what the file does not have.
struct StoredRotary {
  /// A frequency for each pair, (pairs).
  std::string frequencies = {};
  /// Sines, then cosines, for each position: (positions, 2 pairs).
  std::string angles = {};
};

/// Sets the frequencies of the file in `rotary`, of heads of `head_dim`, where
/// they differ from those that it computes; without them in the file nothing
/// changes. Throws c10::Error if tensors of the name differ from each other or
/// have other shapes, and for angles that differ.
void take_stored_rotary(
    const std::string& file,
    const StoredRotary& stored,
    int64_t head_dim,
    RotaryOptions& rotary);

} // namespace torch_attention::weights::pretrained
