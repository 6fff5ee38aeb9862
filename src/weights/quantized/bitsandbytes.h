#pragma once

#include <weights/files/stored_values.h>
#include <weights/quantized/group.h>
#include <weights/quantized/settings.h>

namespace torch_attention::weights::quantized {

/// Returns whether a group has tensors of NF4 or FP4 next to its weight.
bool is_four_bit(const Group& group);

/// Reads a weight of n values in NF4 or FP4: two values in each byte, the first
/// one in the higher bits, with a scale for each block of them:
///
///     weight          n / 2 bytes, usually [n / 2, 1], uint8
///     weight.absmax   one for each block: float32, or uint8 if they are
///                     quantized themselves, by `weight.nested_absmax` and
///                     `weight.nested_quant_map`
///     weight.quant_map                      the 16 values
///     weight.quant_state.bitsandbytes__nf4  JSON, as bytes: `shape`,
///                                           `blocksize` and so on
///
///     value = quant_map[weight] * absmax
///     absmax = nested_quant_map[stored] * nested_absmax + nested_offset
///
/// in float32; the library rounds it to `dtype`. The values that the library
/// has for NF4 and FP4 are taken; it ignores `quant_map` as well, but other
/// ones there are refused.
files::StoredValues read_four_bit(const Group& group, const Settings& settings);

/// Reads LLM.int8(): `weight` [N, K], int8, and `SCB` [N], float32, the
/// greatest absolute value of each row.
///
///     value = float32(weight) * SCB * float32(1 / 127)
///
/// in this order. `weight_format` has to be 0 ("row"), as files have it.
files::StoredValues read_llm_int8(const Group& group, const Settings& settings);

} // namespace torch_attention::weights::quantized
