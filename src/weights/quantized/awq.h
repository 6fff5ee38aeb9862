#pragma once

#include <weights/files/stored_values.h>
#include <weights/quantized/group.h>
#include <weights/quantized/settings.h>

namespace torch_attention::weights::quantized {

/// Reads a weight [N, K] of AWQ with 4 bits, in the version "gemm":
///
///     qweight  [K, N / 8], int32
///     qzeros   [groups, N / 8], int32
///     scales   [groups, N]
///
///     value[n, k] = float32(scales[g, n]) * (qweight[k, n] - qzeros[g, n])
///
/// with g = k * groups / K. The eight integers of a word, from the lowest bits
/// on, are those of 0, 2, 4, 6, 1, 3, 5 and 7. Kernels compute the product in
/// float16; here it is that of float32. Throws `Refused` for other versions.
files::StoredValues read_awq(const Group& group, const Settings& settings);

} // namespace torch_attention::weights::quantized
