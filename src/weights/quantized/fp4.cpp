#include <weights/quantized/fp4.h>

#include <weights/quantized/floats.h>
#include <weights/quantized/integers.h>
#include <weights/text.h>

#include <cmath>

namespace torch_attention::weights::quantized {

namespace {

struct Fp4Decoder {
  torch::Tensor packed;
  torch::Tensor scale;
  /// By what scales are divided.
  float divisor = 1;
  Grid grid;

  void operator()(float* values) const {
    const auto& table = fp4_table();
    const auto* bytes = static_cast<const uint8_t*>(packed.const_data_ptr());
    const Numbers scales(scale);
    // Groups have an even number of columns.
    for_each_run(grid, [&](int64_t from, int64_t to, int64_t index) {
      const auto factor = factor_at(scales, index);
      for (auto i = from; i < to; i += 2) {
        const auto byte = bytes[i / 2];
        values[i] = table[byte & 15] * factor;
        values[i + 1] = table[byte >> 4] * factor;
      }
    });
  }

 private:
  /// Returns the scale of a group. Exponents are computed as the package does,
  /// for which 255 is infinite; in other formats of this kind it is NaN.
  float factor_at(const Numbers& scales, int64_t index) const {
    return scale.scalar_type() == torch::kByte
        ? std::ldexp(1.0F, scale.const_data_ptr<uint8_t>()[index] - 127)
        : scales.at(index) / divisor;
  }
};

/// Throws `Refused` unless it is the scheme of one of the two formats.
void check_scheme(const Scheme& scheme, bool is_nv) {
  refuse_unless(
      scheme.is_float && scheme.bits == 4 && scheme.is_symmetric &&
          scheme.group_size == (is_nv ? 16 : 32) &&
          scheme.strategy == (is_nv ? "tensor_group" : "group") &&
          scheme.is_in(
              {is_nv ? "nvfp4-pack-quantized" : "mxfp4-pack-quantized"}),
      "is quantized by \"compressed-tensors\" as FP4, but not in the groups or "
      "the format of {}",
      is_nv ? "NVFP4" : "MXFP4");
}

} // namespace

files::StoredValues read_fp4(const Group& group, const Scheme& scheme) {
  const bool is_nv = group.has("weight_global_scale");
  check_scheme(scheme, is_nv);
  group.check_fields({"weight_packed", "weight_scale", "weight_global_scale"});
  const auto& packed = group.get("weight_packed", {torch::kByte});
  check_matrix(packed);
  const auto& scale =
      group.get("weight_scale", {is_nv ? torch::kFloat8_e4m3fn : torch::kByte});
  const auto columns = product(packed.size(1), 2);
  product(packed.size(0), columns);
  const auto grid = scheme.grid(packed.size(0), columns);
  scheme.check_scale(scale, grid);
  Fp4Decoder decoder{packed, scale, 1, grid};
  if (is_nv) {
    const auto& global = group.get("weight_global_scale", {torch::kFloat});
    refuse_unless(
        global.numel() == 1,
        "is quantized as NVFP4, but its \"weight_global_scale\" has the shape "
        "{}",
        shape_text(global.sizes()));
    decoder.divisor = global.item<float>();
  }
  files::StoredValues result;
  result.form = is_nv ? "NVFP4" : "MXFP4";
  result.shape = {packed.size(0), columns};
  result.decode = files::floats_by(std::move(decoder));
  return result;
}

} // namespace torch_attention::weights::quantized
