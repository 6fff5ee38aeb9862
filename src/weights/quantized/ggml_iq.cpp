// Compiled without contraction of products and sums to fused operations.

#include <weights/quantized/ggml_iq.h>

#include <weights/quantized/ggml_bits.h>
#include <weights/quantized/ggml_grids.h>

namespace torch_attention::weights::quantized {

namespace {

/// Values that share a byte of signs.
constexpr int kEight = 8;
/// How many of them a block has.
constexpr int kEights = kSuperBlock / kEight;

constexpr std::array<float, 4> kSteps2{8, 25, 43, 0};
constexpr std::array<float, 8> kSteps3Xxs{4, 12, 20, 28, 36, 44, 52, 62};
constexpr std::array<float, 8> kSteps3S{1, 3, 5, 7, 9, 11, 13, 15};

/// Returns the signs of eight values that seven bits stand for: the last one
/// makes their number even.
uint8_t even_signs(unsigned bits) {
  auto parity = bits ^ bits >> 4U;
  parity ^= parity >> 2U;
  parity ^= parity >> 1U;
  return static_cast<uint8_t>(bits | (parity & 1U) << 7U);
}

float with_sign(float value, uint8_t signs, int i) {
  return value * (part_of(signs, i, 1) == 0 ? 1.0F : -1.0F);
}

/// Writes the eight values of an entry with two bits for each.
void write_eight(float scale, uint16_t entry, uint8_t signs, float* values) {
  for (int i = 0; i < kEight; ++i) {
    const auto step = kSteps2[static_cast<size_t>(part_of(entry, i, 2))];
    values[i] = with_sign(scale * step, signs, i);
  }
}

/// Writes the eight values of two entries with four bits for each.
void write_fours(
    float scale,
    const std::array<float, 8>& steps,
    std::array<uint16_t, 2> entries,
    uint8_t signs,
    float* values) {
  for (int i = 0; i < kEight; ++i) {
    const auto entry = entries[static_cast<size_t>(i / 4)];
    const auto step = steps[static_cast<size_t>(part_of(entry, i % 4, 4))];
    values[i] = with_sign(scale * step, signs, i);
  }
}

/// Writes the eight values -1, 0 or 1, to each of which a fraction is added.
void write_ones(float scale, uint16_t entry, bool is_less, float* values) {
  constexpr float kFraction = 0.125F;
  for (int i = 0; i < kEight; ++i) {
    const auto one = static_cast<float>(part_of(entry, i, 2) - 1);
    values[i] = scale * (one + (is_less ? -kFraction : kFraction));
  }
}

} // namespace

void decode_iq1_s(const uint8_t* block, float* values) {
  const auto scale = half_at(block);
  const auto* low = block + 2;
  const auto* high = low + kEights;
  for (int i = 0; i < kEights; ++i) {
    const auto bits = number_at<uint16_t>(high + i / 4 * 2);
    const auto index = low[i] + 256 * part_of(bits, i % 4, 3);
    const auto step = scale * static_cast<float>(2 * part_of(bits, 4, 3) + 1);
    write_ones(
        step,
        kGrid1[static_cast<size_t>(index)],
        part_of(bits, 15, 1) != 0,
        values + i * kEight);
  }
}

void decode_iq1_m(const uint8_t* block, float* values) {
  const auto* high = block + kEights;
  const auto* scales = high + kEights / 2;
  // Four bits of each of four numbers.
  uint16_t bits = 0;
  for (int i = 0; i < 4; ++i) {
    bits = static_cast<uint16_t>(
        bits | part_of(number_at<uint16_t>(scales + i * 2), 3, 4) << (4 * i));
  }
  const float scale = c10::Half(bits, c10::Half::from_bits());
  for (int i = 0; i < kEights; ++i) {
    const auto steps = number_at<uint16_t>(scales + i / 8 * 2);
    const auto step =
        scale * static_cast<float>(2 * part_of(steps, i / 2 % 4, 3) + 1);
    const auto more = part_of(high[i / 2], i % 2, 4);
    const auto index = block[i] + 256 * (more & 7);
    write_ones(
        step,
        kGrid1[static_cast<size_t>(index)],
        (more & 8) != 0,
        values + i * kEight);
  }
}

void decode_iq2_xxs(const uint8_t* block, float* values) {
  const auto scale = half_at(block);
  for (int i = 0; i < kEights; ++i) {
    const auto* group = block + 2 + i / 4 * 8;
    const auto bits = number_at<uint32_t>(group + 4);
    const auto step =
        scale * (0.5F + static_cast<float>(part_of(bits, 7, 4))) * 0.25F;
    write_eight(
        step,
        kGrid2Xxs[group[i % 4]],
        even_signs(static_cast<unsigned>(part_of(bits, i % 4, 7))),
        values + i * kEight);
  }
}

void decode_iq2_xs(const uint8_t* block, float* values) {
  const auto scale = half_at(block);
  const auto* scales = block + 2 + 2 * kEights;
  for (int i = 0; i < kEights; ++i) {
    const auto bits = number_at<uint16_t>(block + 2 + 2 * i);
    const auto part = part_of(scales[i / 4], i / 2 % 2, 4);
    const auto step = scale * (0.5F + static_cast<float>(part)) * 0.25F;
    write_eight(
        step,
        kGrid2Xs[static_cast<size_t>(part_of(bits, 0, 9))],
        even_signs(static_cast<unsigned>(part_of(bits, 1, 9))),
        values + i * kEight);
  }
}

void decode_iq2_s(const uint8_t* block, float* values) {
  const auto scale = half_at(block);
  const auto* low = block + 2;
  const auto* signs = low + kEights;
  const auto* high = signs + kEights;
  const auto* scales = high + kEights / 4;
  for (int i = 0; i < kEights; ++i) {
    const auto index = low[i] + 256 * part_of(high[i / 4], i % 4, 2);
    const auto part = part_of(scales[i / 4], i / 2 % 2, 4);
    const auto step = scale * (0.5F + static_cast<float>(part)) * 0.25F;
    write_eight(
        step,
        kGrid2S[static_cast<size_t>(index)],
        signs[i],
        values + i * kEight);
  }
}

void decode_iq3_xxs(const uint8_t* block, float* values) {
  const auto scale = half_at(block);
  const auto* indices = block + 2;
  const auto* groups = indices + 2 * kEights;
  for (int i = 0; i < kEights; ++i) {
    const auto bits = number_at<uint32_t>(groups + i / 4 * 4);
    const auto step =
        scale * (0.5F + static_cast<float>(part_of(bits, 7, 4))) * 0.5F;
    write_fours(
        step,
        kSteps3Xxs,
        {kGrid3Xxs[indices[2 * i]], kGrid3Xxs[indices[2 * i + 1]]},
        even_signs(static_cast<unsigned>(part_of(bits, i % 4, 7))),
        values + i * kEight);
  }
}

void decode_iq3_s(const uint8_t* block, float* values) {
  const auto scale = half_at(block);
  const auto* low = block + 2;
  const auto* high = low + 2 * kEights;
  const auto* signs = high + kEights / 4;
  const auto* scales = signs + kEights;
  const auto entry = [&](int i) {
    const auto index = low[i] + 256 * part_of(high[i / 8], i % 8, 1);
    return kGrid3S[static_cast<size_t>(index)];
  };
  for (int i = 0; i < kEights; ++i) {
    const auto part = part_of(scales[i / 8], i / 4 % 2, 4);
    write_fours(
        scale * static_cast<float>(2 * part + 1),
        kSteps3S,
        {entry(2 * i), entry(2 * i + 1)},
        signs[i],
        values + i * kEight);
  }
}

} // namespace torch_attention::weights::quantized
