#pragma once

#include <weights/files/stored_values.h>
#include <weights/quantized/group.h>
#include <weights/quantized/settings.h>

namespace torch_attention::weights::quantized {

/// Reads a weight [N, K] of GPTQ with 2, 3, 4 or 8 bits:
///
///     qweight  [K * bits / 32, N], int32: K integers of `bits` bits in each
///              column, from the lowest bit on
///     qzeros   [groups, N * bits / 32], int32: N such integers in each row
///     scales   [groups, N]
///     g_idx    [K], int32: the group of each row of the integers
///
///     value[n, k] = float32(scales[g, n]) * (qweight[k, n] - zero[g, n])
///
/// with g = g_idx[k]; without `g_idx`, groups follow each other. The stored
/// zeros are one less than `zero` (modulo 2^bits) unless `checkpoint_format` is
/// "gptq_v2". Kernels compute the product in float16; here it is that of
/// float32. Throws `Refused` without configuration, which alone says which of
/// the two versions it is.
files::StoredValues read_gptq(const Group& group, const Settings& settings);

} // namespace torch_attention::weights::quantized
