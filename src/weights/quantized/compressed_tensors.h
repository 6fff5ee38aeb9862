#pragma once

#include <weights/files/stored_values.h>
#include <weights/quantized/group.h>
#include <weights/quantized/settings.h>

namespace torch_attention::weights::quantized {

/// Reads a weight [N, K] of compressed-tensors, in these formats:
///
///     format                 tensor
///     pack-quantized         weight_packed [N, ceil(K * bits / 32)], int32
///     int-quantized          weight [N, K], int8
///     float-quantized        weight [N, K], Float8_e4m3fn
///     naive-quantized        weight [N, K], int8 or Float8_e4m3fn
///     nvfp4-pack-quantized   weight_packed [N, K / 2], uint8
///     mxfp4-pack-quantized   weight_packed [N, K / 2], uint8
///
/// with scales for the whole tensor, for rows, groups of columns, or blocks:
///
///     value = float32(weight - weight_zero_point) * float32(weight_scale)
///
/// `weight_g_idx` gives the group of each column in files of older versions.
/// The scales of nvfp4 are divided by `weight_global_scale` first; those of
/// mxfp4 are exponents. The library rounds to the dtype of the scale.
///
/// The scheme of the configuration that fits the tensors is taken. Throws
/// `Refused` if none fits, or several do.
files::StoredValues read_compressed(
    const Group& group,
    const Settings& settings);

} // namespace torch_attention::weights::quantized
