#pragma once

#include <weights/files/stored_values.h>
#include <weights/quantized/floats.h>
#include <weights/quantized/grid.h>
#include <weights/quantized/group.h>
#include <weights/quantized/settings.h>

#include <cstdint>
#include <string>

namespace torch_attention::weights::quantized {

/// Returns whether the values of a dtype are FP8.
bool is_fp8(torch::ScalarType dtype);

/// Returns whether a group is an FP8 weight that needs a scale: it has one, or
/// the configuration says that weights are quantized.
bool is_scaled_fp8(const Group& group, const Settings& settings);

/// Reads a weight [N, K] in Float8_e4m3fn or Float8_e5m2 and its scales: one,
/// one for each row, or one for each block. They are called `weight_scale_inv`
/// ("fp8" of transformers: DeepSeek, Qwen and others) or `weight_scale`
/// (AutoFP8, "fbgemm_fp8", ModelOpt), and are multiplied in both cases:
///
///     value = float32(weight) * float32(scale)
///
/// transformers rounds this product to the dtype of the model. Throws `Refused`
/// if the size of blocks follows neither from the configuration nor from
/// shapes.
files::StoredValues read_fp8(const Group& group, const Settings& settings);

/// Writes the values of FP8 `weight` with scales for the blocks of `grid`.
template <typename T>
void write_fp8(
    const torch::Tensor& weight,
    const torch::Tensor& scale,
    const Grid& grid,
    T* values) {
  const auto& table = table_of(weight.scalar_type());
  const auto* bytes = static_cast<const uint8_t*>(weight.const_data_ptr());
  const Numbers scales(scale);
  for_each_run(grid, [&](int64_t from, int64_t to, int64_t index) {
    const auto factor = scales.at(index);
    for (auto i = from; i < to; ++i) {
      values[i] = static_cast<T>(table[bytes[i]] * factor);
    }
  });
}

/// Returns the values of FP8 with scales for these blocks: tensors that were
/// checked.
files::StoredValues fp8_values(
    const torch::Tensor& weight,
    const torch::Tensor& scale,
    const Grid& grid);

} // namespace torch_attention::weights::quantized
