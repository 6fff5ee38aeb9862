#include <weights/quantized/awq.h>

#include <weights/quantized/floats.h>
#include <weights/text.h>

#include <array>

namespace torch_attention::weights::quantized {

namespace {

/// Integers in a word.
constexpr int64_t kPack = 8;

/// The lowest bit of each integer in its word.
constexpr std::array<int, kPack> kShifts = {0, 16, 4, 20, 8, 24, 12, 28};

struct AwqDecoder {
  torch::Tensor qweight;
  torch::Tensor qzeros;
  torch::Tensor scales;

  void operator()(float* values) const {
    const auto columns = qweight.size(0);
    const auto words = qweight.size(1);
    const auto size = columns / scales.size(0);
    const auto* weight = static_cast<const uint32_t*>(qweight.const_data_ptr());
    const auto* zero = static_cast<const uint32_t*>(qzeros.const_data_ptr());
    const Numbers numbers(scales);
    std::array<float, kPack> factors{};
    for (int64_t word = 0; word < words; ++word) {
      for (int64_t column = 0; column < columns; ++column) {
        const auto group = column / size;
        if (column % size == 0) {
          numbers.copy((group * words + word) * kPack, kPack, factors.data());
        }
        decode_word(
            weight[column * words + word],
            zero[group * words + word],
            factors,
            values + word * kPack * columns + column,
            columns);
      }
    }
  }

 private:
  static void decode_word(
      uint32_t integers,
      uint32_t zeros,
      const std::array<float, kPack>& factors,
      float* values,
      int64_t stride) {
    for (int64_t i = 0; i < kPack; ++i) {
      const auto shift = kShifts[static_cast<size_t>(i)];
      const auto value = static_cast<int32_t>(integers >> shift & 15) -
          static_cast<int32_t>(zeros >> shift & 15);
      values[i * stride] =
          static_cast<float>(value) * factors[static_cast<size_t>(i)];
    }
  }
};

/// Throws `Refused` unless the configuration is of 4 bits in the version
/// "gemm".
void check_awq_settings(const Settings& settings) {
  check_method(settings, "AWQ", {"awq"});
  const auto version = settings.text({"version", "format"}).value_or("gemm");
  const auto backend = settings.text({"backend"}).value_or("");
  refuse_unless(
      version == "gemm" && backend != "llm-awq",
      "is quantized by AWQ in the version \"{}\", which is not read",
      backend == "llm-awq" ? backend : version);
  const auto bits = settings.integer({"bits", "w_bit"}).value_or(4);
  refuse_unless(
      bits == 4, "is quantized by AWQ with {} bits, which are not read", bits);
  refuse_unless(
      settings.flag("zero_point").value_or(true),
      "is quantized by AWQ without zero points, which is not read");
}

} // namespace

files::StoredValues read_awq(const Group& group, const Settings& settings) {
  check_awq_settings(settings);
  group.check_fields({"qweight", "qzeros", "scales"});
  const auto& qweight = group.get("qweight", {torch::kInt});
  const auto& qzeros = group.get("qzeros", {torch::kInt});
  const auto& scales = group.get("scales", kFloats);
  refuse_unless(
      qweight.dim() == 2 && qzeros.dim() == 2 && scales.dim() == 2 &&
          qzeros.size(0) == scales.size(0) &&
          qzeros.size(1) == qweight.size(1) &&
          scales.size(1) == product(qweight.size(1), kPack),
      "is quantized by AWQ, but \"qweight\", \"qzeros\" and \"scales\" of {}, "
      "{} and {} do not fit together",
      shape_text(qweight.sizes()),
      shape_text(qzeros.sizes()),
      shape_text(scales.sizes()));
  const auto columns = qweight.size(0);
  const auto groups = scales.size(0);
  const auto size = columns / groups;
  const auto expected =
      settings.integer({"group_size", "q_group_size"}).value_or(size);
  refuse_unless(
      columns % groups == 0 &&
          (expected == -1 ? groups == 1 : expected == size),
      "is quantized by AWQ, but {} columns in {} groups do not fit groups of "
      "{}",
      columns,
      groups,
      expected);
  files::StoredValues result;
  result.form = "AWQ of 4 bits";
  result.shape = {scales.size(1), columns};
  result.decode = files::floats_by(AwqDecoder{qweight, qzeros, scales});
  return result;
}

} // namespace torch_attention::weights::quantized
