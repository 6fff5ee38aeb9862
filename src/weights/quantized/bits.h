#pragma once

#include <cstdint>

namespace torch_attention::weights::quantized {

/// Integers of `bits` bits that follow each other in words of 32 bits, from the
/// lowest bit on. One may begin in a word and end in the next one.
///
/// Word i is `words[i * stride]`.
struct PackedBits {
  const uint32_t* words = nullptr;
  int64_t stride = 1;
  int bits = 4;

  uint32_t at(int64_t index) const {
    const auto position = index * bits;
    const auto* word = words + position / 32 * stride;
    const auto shift = static_cast<int>(position % 32);
    auto value = *word >> shift;
    if (shift + bits > 32) {
      value |= word[stride] << (32 - shift);
    }
    return value & ((uint32_t{1} << bits) - 1);
  }
};

} // namespace torch_attention::weights::quantized
