#pragma once

#include <c10/util/Half.h>

#include <cstdint>
#include <cstring>

// Numbers in ggml's blocks, which need not be aligned.

namespace torch_attention::weights::quantized {

/// Values in K and IQ blocks.
inline constexpr int kSuperBlock = 256;

template <typename T>
T number_at(const uint8_t* bytes) {
  T value;
  std::memcpy(&value, bytes, sizeof(value));
  return value;
}

inline float half_at(const uint8_t* bytes) {
  return c10::Half(number_at<uint16_t>(bytes), c10::Half::from_bits());
}

/// Returns the `index`th part of `bits` bits in a number.
inline int part_of(unsigned number, int index, int bits) {
  return static_cast<int>(
      (number >> static_cast<unsigned>(index * bits)) &
      ((1U << static_cast<unsigned>(bits)) - 1U));
}

} // namespace torch_attention::weights::quantized
