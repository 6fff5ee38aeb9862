#pragma once

#include <cstdint>

// Blocks of ggml's types IQ1 to IQ3: 256 values, each group of four or eight of
// which is an entry of a grid.

namespace torch_attention::weights::quantized {

void decode_iq1_s(const uint8_t* block, float* values);
void decode_iq1_m(const uint8_t* block, float* values);
void decode_iq2_xxs(const uint8_t* block, float* values);
void decode_iq2_xs(const uint8_t* block, float* values);
void decode_iq2_s(const uint8_t* block, float* values);
void decode_iq3_xxs(const uint8_t* block, float* values);
void decode_iq3_s(const uint8_t* block, float* values);

} // namespace torch_attention::weights::quantized
