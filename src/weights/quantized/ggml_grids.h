#pragma once

#include <array>
#include <cstdint>

// The grids of ggml's IQ types: which groups of values a block may have. These
// numbers are part of the file format.

namespace torch_attention::weights::quantized {

/// Eight values in two bits each: 0, 1 and 2 stand for 8, 25 and 43.
extern const std::array<uint16_t, 256> kGrid2Xxs;
extern const std::array<uint16_t, 512> kGrid2Xs;
extern const std::array<uint16_t, 1024> kGrid2S;

/// Four values in four bits each: 0 to 7 stand for 4, 12, 20, 28, 36, 44, 52
/// and 62.
extern const std::array<uint16_t, 256> kGrid3Xxs;

/// Four values in four bits each: 0 to 7 stand for the odd numbers up to 15.
extern const std::array<uint16_t, 512> kGrid3S;

/// Eight values in two bits each: 0, 1 and 2 stand for -1, 0 and 1.
extern const std::array<uint16_t, 2048> kGrid1;

} // namespace torch_attention::weights::quantized
