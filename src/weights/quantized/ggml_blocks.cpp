// Compiled without contraction of products and sums to fused operations.

#include <weights/quantized/ggml_blocks.h>

#include <weights/quantized/ggml_bits.h>
#include <weights/quantized/ggml_iq.h>

#include <array>
#include <cmath>
#include <cstring>

namespace torch_attention::weights::quantized {

namespace {

constexpr int kBlock = 32;
constexpr int kHalfBlock = kBlock / 2;
constexpr int kGroup = 16;
constexpr int kScaleBytes = 12;

float float_from_bits(uint32_t bits) {
  float value = 0;
  std::memcpy(&value, &bits, sizeof(value));
  return value;
}

/// Returns the value of the low half of the bytes for the first 16 values, of
/// the high half for the others.
int nibble(const uint8_t* bytes, int i) {
  return part_of(bytes[i % kHalfBlock], i / kHalfBlock, 4);
}

/// Returns bit i of 32.
int bit(uint32_t bits, int i) {
  return static_cast<int>((bits >> static_cast<unsigned>(i)) & 1U);
}

void decode_f32(const uint8_t* block, float* values) {
  *values = number_at<float>(block);
}

void decode_f16(const uint8_t* block, float* values) {
  *values = half_at(block);
}

void decode_bf16(const uint8_t* block, float* values) {
  constexpr unsigned kShift = 16;
  *values = float_from_bits(uint32_t{number_at<uint16_t>(block)} << kShift);
}

void decode_q4_0(const uint8_t* block, float* values) {
  constexpr int kZero = 8;
  const auto scale = half_at(block);
  for (int i = 0; i < kBlock; ++i) {
    values[i] = scale * static_cast<float>(nibble(block + 2, i) - kZero);
  }
}

void decode_q4_1(const uint8_t* block, float* values) {
  const auto scale = half_at(block);
  const auto least = half_at(block + 2);
  for (int i = 0; i < kBlock; ++i) {
    values[i] = scale * static_cast<float>(nibble(block + 4, i)) + least;
  }
}

void decode_q5_0(const uint8_t* block, float* values) {
  constexpr int kZero = 16;
  const auto scale = half_at(block);
  const auto high = number_at<uint32_t>(block + 2);
  for (int i = 0; i < kBlock; ++i) {
    const auto value = nibble(block + 6, i) + 16 * bit(high, i);
    values[i] = scale * static_cast<float>(value - kZero);
  }
}

void decode_q5_1(const uint8_t* block, float* values) {
  const auto scale = half_at(block);
  const auto least = half_at(block + 2);
  const auto high = number_at<uint32_t>(block + 4);
  for (int i = 0; i < kBlock; ++i) {
    const auto value = nibble(block + 8, i) + 16 * bit(high, i);
    values[i] = scale * static_cast<float>(value) + least;
  }
}

void decode_q8_0(const uint8_t* block, float* values) {
  const auto scale = half_at(block);
  for (int i = 0; i < kBlock; ++i) {
    values[i] = scale * static_cast<float>(number_at<int8_t>(block + 2 + i));
  }
}

/// Returns value i of 256 with two bits each: 32 bytes have values i, i + 32,
/// i + 64 and i + 96.
int two_bits(const uint8_t* bytes, int i) {
  constexpr int kValues = 4 * kBlock;
  return part_of(
      bytes[i / kValues * kBlock + i % kBlock], i % kValues / kBlock, 2);
}

/// Returns value i of 256 with four bits each: 32 bytes have values i and
/// i + 32.
int four_bits(const uint8_t* bytes, int i) {
  constexpr int kValues = 2 * kBlock;
  return part_of(
      bytes[i / kValues * kBlock + i % kBlock], i % kValues / kBlock, 4);
}

void decode_q2_k(const uint8_t* block, float* values) {
  const auto* scales = block;
  const auto* bits = block + 16;
  const auto scale = half_at(block + 80);
  const auto least = half_at(block + 82);
  for (int group = 0; group < kSuperBlock; group += kGroup) {
    const auto byte = scales[group / kGroup];
    const auto step = scale * static_cast<float>(part_of(byte, 0, 4));
    const auto begin = least * static_cast<float>(part_of(byte, 1, 4));
    for (int i = group; i < group + kGroup; ++i) {
      values[i] = step * static_cast<float>(two_bits(bits, i)) - begin;
    }
  }
}

/// Returns scale i of 16 with six bits each, from 12 bytes.
int scale_of_q3_k(const uint8_t* scales, int i) {
  constexpr int kZero = 32;
  const auto low = part_of(scales[i % 8], i / 8, 4);
  const auto high = part_of(scales[8 + i % 4], i / 4, 2);
  return low + 16 * high - kZero;
}

void decode_q3_k(const uint8_t* block, float* values) {
  const auto* high = block;
  const auto* bits = block + 32;
  const auto* scales = block + 96;
  const auto scale = half_at(block + 96 + kScaleBytes);
  for (int group = 0; group < kSuperBlock; group += kGroup) {
    const auto step =
        scale * static_cast<float>(scale_of_q3_k(scales, group / kGroup));
    for (int i = group; i < group + kGroup; ++i) {
      const auto is_low = 1 - part_of(high[i % kBlock], i / kBlock, 1);
      values[i] = step * static_cast<float>(two_bits(bits, i) - 4 * is_low);
    }
  }
}

/// The scale and the least value of 32 values.
struct Range {
  int scale;
  int least;
};

/// Returns range i of 8, whose numbers have six bits each, from 12 bytes.
Range range_of(const uint8_t* scales, int i) {
  constexpr unsigned kLow6 = 0x3F;
  if (i < 4) {
    return {
        static_cast<int>(scales[i] & kLow6),
        static_cast<int>(scales[4 + i] & kLow6)};
  }
  const auto both = scales[4 + i];
  return {
      part_of(both, 0, 4) + 16 * part_of(scales[i - 4], 3, 2),
      part_of(both, 1, 4) + 16 * part_of(scales[i], 3, 2)};
}

void decode_q4_k(const uint8_t* block, float* values) {
  const auto scale = half_at(block);
  const auto least = half_at(block + 2);
  const auto* scales = block + 4;
  const auto* bits = scales + kScaleBytes;
  for (int group = 0; group < kSuperBlock; group += kBlock) {
    const auto range = range_of(scales, group / kBlock);
    const auto step = scale * static_cast<float>(range.scale);
    const auto begin = least * static_cast<float>(range.least);
    for (int i = group; i < group + kBlock; ++i) {
      values[i] = step * static_cast<float>(four_bits(bits, i)) - begin;
    }
  }
}

void decode_q5_k(const uint8_t* block, float* values) {
  const auto scale = half_at(block);
  const auto least = half_at(block + 2);
  const auto* scales = block + 4;
  const auto* high = scales + kScaleBytes;
  const auto* bits = high + kBlock;
  for (int group = 0; group < kSuperBlock; group += kBlock) {
    const auto range = range_of(scales, group / kBlock);
    const auto step = scale * static_cast<float>(range.scale);
    const auto begin = least * static_cast<float>(range.least);
    for (int i = group; i < group + kBlock; ++i) {
      const auto fifth = part_of(high[i % kBlock], group / kBlock, 1);
      const auto value = four_bits(bits, i) + 16 * fifth;
      values[i] = step * static_cast<float>(value) - begin;
    }
  }
}

void decode_q6_k(const uint8_t* block, float* values) {
  constexpr int kHalf = 64;
  constexpr int kZero = 32;
  const auto* low = block;
  const auto* high = block + 128;
  const auto* scales = block + 192;
  const auto scale = half_at(block + 208);
  for (int group = 0; group < kSuperBlock; group += kGroup) {
    const auto step =
        scale * static_cast<float>(number_at<int8_t>(scales + group / kGroup));
    for (int i = group; i < group + kGroup; ++i) {
      const auto byte = low[i / (2 * kHalf) * kHalf + i % kHalf];
      const auto value =
          part_of(byte, i / kHalf % 2, 4) + 16 * two_bits(high, i);
      values[i] = step * static_cast<float>(value - kZero);
    }
  }
}

/// The values of IQ4 types.
constexpr std::array<float, 16> kUnequalSteps{
    -127,
    -104,
    -83,
    -65,
    -49,
    -35,
    -22,
    -10,
    1,
    13,
    25,
    38,
    53,
    69,
    89,
    113};

void decode_iq4_nl(const uint8_t* block, float* values) {
  const auto scale = half_at(block);
  for (int i = 0; i < kBlock; ++i) {
    values[i] =
        scale * kUnequalSteps[static_cast<size_t>(nibble(block + 2, i))];
  }
}

void decode_iq4_xs(const uint8_t* block, float* values) {
  constexpr int kZero = 32;
  const auto scale = half_at(block);
  const auto* high = block + 2;
  const auto* low = block + 4;
  const auto* bits = block + 8;
  for (int group = 0; group < kSuperBlock / kBlock; ++group) {
    const auto step = scale *
        static_cast<float>(
                          part_of(low[group / 2], group % 2, 4) +
                          16 * part_of(high[group / 4], group % 4, 2) - kZero);
    for (int i = 0; i < kBlock; ++i) {
      const auto index = nibble(bits + group * kHalfBlock, i);
      values[group * kBlock + i] =
          step * kUnequalSteps[static_cast<size_t>(index)];
    }
  }
}

/// Twice the values of E2M1, for half the scale.
constexpr std::array<float, 16>
    kTwiceFp4{0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12};

void decode_mxfp4(const uint8_t* block, float* values) {
  constexpr uint32_t kSmallest = 0x00200000;
  constexpr unsigned kMantissa = 23;
  const uint32_t exponent = block[0];
  const auto scale = float_from_bits(
      exponent < 2 ? kSmallest << exponent : (exponent - 1) << kMantissa);
  for (int i = 0; i < kBlock; ++i) {
    values[i] = scale * kTwiceFp4[static_cast<size_t>(nibble(block + 1, i))];
  }
}

/// Returns half of a number of E4M3, without its sign; 0 for the NaN.
float half_of_e4m3(uint8_t byte) {
  constexpr int kBias = 7;
  constexpr uint8_t kNan = 0x7F;
  const auto exponent = part_of(byte >> 3U, 0, 4);
  const auto mantissa = part_of(byte, 0, 3);
  if (byte == kNan) {
    return 0;
  }
  return exponent == 0
      ? std::ldexp(static_cast<float>(mantissa), -3 - kBias)
      : std::ldexp(static_cast<float>(8 + mantissa), exponent - kBias - 4);
}

void decode_nvfp4(const uint8_t* block, float* values) {
  constexpr int kGroups = 4;
  for (int group = 0; group < kGroups; ++group) {
    const auto scale = half_of_e4m3(block[group]);
    const auto* bytes = block + kGroups + group * kGroup / 2;
    for (int i = 0; i < kGroup; ++i) {
      const auto code = part_of(bytes[i % (kGroup / 2)], i / (kGroup / 2), 4);
      values[group * kGroup + i] = scale * kTwiceFp4[static_cast<size_t>(code)];
    }
  }
}

/// Returns digit `index` of a byte that holds five digits of base 3, as a
/// fraction of 256.
int digit_of(uint8_t byte, int index) {
  constexpr std::array<unsigned, 5> kPowers{1, 3, 9, 27, 81};
  constexpr unsigned kByte = 0xFF;
  constexpr unsigned kBits = 8;
  const auto rest = byte * kPowers[static_cast<size_t>(index)] & kByte;
  return static_cast<int>(rest * 3 >> kBits);
}

void decode_tq1_0(const uint8_t* block, float* values) {
  const auto scale = half_at(block + 52);
  const auto write = [&](const uint8_t* bytes, int count, int digits) {
    for (int digit = 0; digit < digits; ++digit) {
      for (int i = 0; i < count; ++i) {
        *values++ = scale * static_cast<float>(digit_of(bytes[i], digit) - 1);
      }
    }
  };
  write(block, 32, 5);
  write(block + 32, 16, 5);
  write(block + 48, 4, 4);
}

void decode_tq2_0(const uint8_t* block, float* values) {
  const auto scale = half_at(block + 64);
  for (int i = 0; i < kSuperBlock; ++i) {
    values[i] = scale * static_cast<float>(two_bits(block, i) - 1);
  }
}

template <auto decode_block, int64_t kValues, int64_t kBytes>
void decode_all(const uint8_t* blocks, int64_t count, float* values) {
  for (int64_t i = 0; i < count; ++i) {
    decode_block(blocks + i * kBytes, values + i * kValues);
  }
}

template <auto decode_block, int64_t kValues, int64_t kBytes>
constexpr GgmlType decoded(uint32_t number, std::string_view name) {
  return {
      number, name, kValues, kBytes, decode_all<decode_block, kValues, kBytes>};
}

// Q8_1 and Q8_K are for activations: no file has them. Numbers that are missing
// belonged to types that ggml has removed.
constexpr std::array kTypes{
    decoded<decode_f32, 1, 4>(0, "F32"),
    decoded<decode_f16, 1, 2>(1, "F16"),
    decoded<decode_q4_0, kBlock, 18>(2, "Q4_0"),
    decoded<decode_q4_1, kBlock, 20>(3, "Q4_1"),
    decoded<decode_q5_0, kBlock, 22>(6, "Q5_0"),
    decoded<decode_q5_1, kBlock, 24>(7, "Q5_1"),
    decoded<decode_q8_0, kBlock, 34>(8, "Q8_0"),
    decoded<decode_q2_k, kSuperBlock, 84>(10, "Q2_K"),
    decoded<decode_q3_k, kSuperBlock, 110>(11, "Q3_K"),
    decoded<decode_q4_k, kSuperBlock, 144>(12, "Q4_K"),
    decoded<decode_q5_k, kSuperBlock, 176>(13, "Q5_K"),
    decoded<decode_q6_k, kSuperBlock, 210>(14, "Q6_K"),
    decoded<decode_iq2_xxs, kSuperBlock, 66>(16, "IQ2_XXS"),
    decoded<decode_iq2_xs, kSuperBlock, 74>(17, "IQ2_XS"),
    decoded<decode_iq3_xxs, kSuperBlock, 98>(18, "IQ3_XXS"),
    decoded<decode_iq1_s, kSuperBlock, 50>(19, "IQ1_S"),
    decoded<decode_iq4_nl, kBlock, 18>(20, "IQ4_NL"),
    decoded<decode_iq3_s, kSuperBlock, 110>(21, "IQ3_S"),
    decoded<decode_iq2_s, kSuperBlock, 82>(22, "IQ2_S"),
    decoded<decode_iq4_xs, kSuperBlock, 136>(23, "IQ4_XS"),
    GgmlType{24, "I8", 1, 1, nullptr},
    GgmlType{25, "I16", 1, 2, nullptr},
    GgmlType{26, "I32", 1, 4, nullptr},
    GgmlType{27, "I64", 1, 8, nullptr},
    GgmlType{28, "F64", 1, 8, nullptr},
    decoded<decode_iq1_m, kSuperBlock, 56>(29, "IQ1_M"),
    decoded<decode_bf16, 1, 2>(30, "BF16"),
    decoded<decode_tq1_0, kSuperBlock, 54>(34, "TQ1_0"),
    decoded<decode_tq2_0, kSuperBlock, 66>(35, "TQ2_0"),
    decoded<decode_mxfp4, kBlock, 17>(39, "MXFP4"),
    decoded<decode_nvfp4, 4 * kGroup, 36>(40, "NVFP4"),
    GgmlType{41, "Q1_0", 128, 18, nullptr},
};

} // namespace

const GgmlType* ggml_type(uint32_t number) {
  for (const auto& type : kTypes) {
    if (type.number == number) {
      return &type;
    }
  }
  return nullptr;
}

} // namespace torch_attention::weights::quantized
