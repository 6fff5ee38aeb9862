#pragma once

#include <json_tree.h>
#include <weights/files/stored_values.h>
#include <weights/quantized/group.h>
#include <weights/quantized/settings.h>

namespace torch_attention::weights::quantized {

/// Reads a tensor [..., N, K] of torchao, whose parts and description
/// `TorchaoNames` finds. Of these classes:
///
///     class                      qdata
///     Int8Tensor                 int8
///     IntxUnpackedToInt8Tensor   int8
///     Float8Tensor               Float8_e4m3fn or Float8_e5m2
///     MXTensor                   the same, or two FP4 (E2M1) in each byte
///     NVFP4Tensor                two FP4 (E2M1) in each byte
///
/// with a `scale`, and perhaps a `zero_point`, for each block of `block_size`:
///
///     value = (qdata - zero_point) * scale
///
/// The result has the dtype of the original tensor, and the bits of torchao's
/// `dequantize()`: differences are rounded to this dtype, products are those of
/// float32, and then rounded. Scales of MXTensor are exponents; those of
/// NVFP4Tensor are multiplied by `per_tensor_scale`; both may be in the order
/// of NVIDIA's tiles ("swizzled").
///
/// What quantizes activations is left out. Throws `Refused` for other classes
/// (those of int4 have no values but in kernels of a GPU), and for an
/// `act_pre_scale`, by which a module multiplies its input.
files::StoredValues read_torchao(
    const Group& group,
    const Json& description,
    const Settings& settings);

} // namespace torch_attention::weights::quantized
