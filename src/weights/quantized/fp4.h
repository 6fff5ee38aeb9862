#pragma once

#include <weights/files/stored_values.h>
#include <weights/quantized/group.h>
#include <weights/quantized/scheme.h>

namespace torch_attention::weights::quantized {

/// Reads FP4 (E2M1) of compressed-tensors: two values in each byte of
/// `weight_packed` [N, K / 2], the first one in the lower bits. NVFP4 has
/// scales in Float8_e4m3fn, which are divided by `weight_global_scale`, for
/// groups of 16; MXFP4 has exponents, for groups of 32.
files::StoredValues read_fp4(const Group& group, const Scheme& scheme);

} // namespace torch_attention::weights::quantized
