#include <weights/quantized/gptq.h>

#include <weights/quantized/bits.h>
#include <weights/quantized/floats.h>
#include <weights/text.h>

#include <algorithm>
#include <array>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace torch_attention::weights::quantized {

namespace {

struct GptqSizes {
  int64_t rows = 0; // N, those of the weight
  int64_t columns = 0; // K
  int64_t groups = 0;
  int bits = 0;
};

/// The tensors, and where each column of the weight has its scales.
struct GptqDecoder {
  torch::Tensor qweight;
  torch::Tensor qzeros;
  torch::Tensor scales;
  GptqSizes sizes;
  /// Added to the stored zeros, by `zero_at`.
  uint32_t offset = 0;
  /// A copy of `g_idx`, because the file may change after it was checked.
  std::vector<int32_t> group_of;

  void operator()(float* values) const {
    for (int64_t row = 0; row < sizes.rows; row += kTile) {
      decode_rows(row, std::min(kTile, sizes.rows - row), values);
    }
  }

 private:
  /// Rows of the weight, which are columns of the file.
  static constexpr int64_t kTile = 64;

  void decode_rows(int64_t first, int64_t count, float* values) const {
    std::array<float, kTile> factors{};
    std::array<int32_t, kTile> zeros{};
    int64_t group = -1;
    const auto* words =
        static_cast<const uint32_t*>(qweight.const_data_ptr()) + first;
    for (int64_t column = 0; column < sizes.columns; ++column) {
      const auto next = group_of[static_cast<size_t>(column)];
      if (next != group) {
        group = next;
        read_group(group, first, count, factors.data(), zeros.data());
      }
      auto* to = values + first * sizes.columns + column;
      for (int64_t i = 0; i < count; ++i) {
        const PackedBits stored{words + i, sizes.rows, sizes.bits};
        const auto value = static_cast<int32_t>(stored.at(column)) -
            zeros[static_cast<size_t>(i)];
        to[i * sizes.columns] =
            static_cast<float>(value) * factors[static_cast<size_t>(i)];
      }
    }
  }

  /// Writes the scales and zeros of some rows of the weight.
  void read_group(
      int64_t group,
      int64_t first,
      int64_t count,
      float* factors,
      int32_t* zeros) const {
    Numbers(scales).copy(group * sizes.rows + first, count, factors);
    const auto width = sizes.rows * sizes.bits / 32;
    const auto* words =
        static_cast<const uint32_t*>(qzeros.const_data_ptr()) + group * width;
    for (int64_t i = 0; i < count; ++i) {
      zeros[i] = static_cast<int32_t>(zero_at(words, first + i));
    }
  }

  /// Returns a zero of version 1 or 2. GPTQModel subtracts 1 from all fields of
  /// a word at once when it saves version 1, so that a zero of 0 borrows from
  /// the field after it; adding to the whole word undoes that. Fields of 3 bits
  /// it changes one by one.
  uint32_t zero_at(const uint32_t* words, int64_t index) const {
    const auto mask = (uint32_t{1} << sizes.bits) - 1;
    if (32 % sizes.bits != 0) {
      return (PackedBits{words, 1, sizes.bits}.at(index) + offset) & mask;
    }
    const auto one_in_each_field = ~uint32_t{0} / mask;
    const auto position = index * sizes.bits;
    const auto word = words[position / 32] + offset * one_in_each_field;
    return (word >> (position % 32)) & mask;
  }
};

/// Returns the number to add to stored zeros. Throws `Refused` if the
/// configuration is of another format.
uint32_t offset_of(const Settings& settings) {
  refuse_unless(
      settings.exist(),
      "is quantized by GPTQ, but there is no configuration that says in which "
      "version of its format");
  check_method(settings, "GPTQ", {"gptq"});
  refuse_unless(
      !settings.flag("is_marlin_format").value_or(false),
      "is quantized by GPTQ in the format of Marlin, which is not read");
  const auto format =
      settings.text({"checkpoint_format", "format"}).value_or("gptq");
  refuse_unless(
      format == "gptq" || format == "gptq_v2",
      "is quantized by GPTQ in the format \"{}\", which is not read",
      format);
  return format == "gptq" ? 1 : 0;
}

/// Returns the bits of each integer: they follow from the shapes of zeros and
/// scales. Throws `Refused` if the configuration has others.
int bits_of(
    const torch::Tensor& qzeros,
    const torch::Tensor& scales,
    const Settings& settings) {
  const auto rows = scales.size(1);
  const auto words = product(qzeros.size(1), 32);
  const auto bits = words / rows;
  refuse_unless(
      words % rows == 0 && (bits == 2 || bits == 3 || bits == 4 || bits == 8),
      "is quantized by GPTQ, but \"qzeros\" of {} and \"scales\" of {} are not "
      "those of 2, 3, 4 or 8 bits",
      shape_text(qzeros.sizes()),
      shape_text(scales.sizes()));
  // Modules may have other bits than the model.
  const auto& exceptions = settings.get("dynamic");
  const bool has_exceptions = !exceptions.fields().empty();
  const auto expected = settings.integer({"bits"});
  refuse_unless(
      has_exceptions || !expected || *expected == bits,
      "is quantized by GPTQ with {} bits, but the configuration says {}",
      bits,
      expected.value_or(0));
  return static_cast<int>(bits);
}

GptqSizes sizes_of(const Group& group, const Settings& settings) {
  const auto& qweight = group.get("qweight", {torch::kInt});
  const auto& qzeros = group.get("qzeros", {torch::kInt});
  const auto& scales = group.get("scales", kFloats);
  refuse_unless(
      qweight.dim() == 2 && qzeros.dim() == 2 && scales.dim() == 2 &&
          qzeros.size(0) == scales.size(0) && qweight.size(1) == scales.size(1),
      "is quantized by GPTQ, but \"qweight\", \"qzeros\" and \"scales\" of {}, "
      "{} and {} do not fit together",
      shape_text(qweight.sizes()),
      shape_text(qzeros.sizes()),
      shape_text(scales.sizes()));
  GptqSizes sizes;
  sizes.bits = bits_of(qzeros, scales, settings);
  sizes.rows = scales.size(1);
  sizes.groups = scales.size(0);
  const auto all_bits = product(qweight.size(0), 32);
  refuse_unless(
      all_bits % sizes.bits == 0,
      "is quantized by GPTQ, but {} rows of \"qweight\" are not of {} bits",
      qweight.size(0),
      sizes.bits);
  sizes.columns = all_bits / sizes.bits;
  product(sizes.rows, sizes.columns);
  return sizes;
}

/// Returns the group of each column of the weight.
std::vector<int32_t> groups_of_columns(
    const Group& group,
    const GptqSizes& sizes,
    const Settings& settings) {
  std::vector<int32_t> result(static_cast<size_t>(sizes.columns));
  if (group.has("g_idx")) {
    const auto& indices = group.get("g_idx", {torch::kInt});
    group.check_shape("g_idx", {sizes.columns});
    const auto* from = indices.const_data_ptr<int32_t>();
    std::copy(from, from + sizes.columns, result.begin());
    const auto [least, most] =
        std::minmax_element(result.begin(), result.end());
    refuse_unless(
        *least >= 0 && *most < sizes.groups,
        "is quantized by GPTQ, but its \"g_idx\" has a value of {}, and there "
        "are {} groups",
        *least < 0 ? *least : *most,
        sizes.groups);
    return result;
  }
  const auto size = sizes.columns / sizes.groups;
  const auto expected = settings.integer({"group_size"}).value_or(size);
  refuse_unless(
      sizes.columns % sizes.groups == 0 &&
          (expected == -1 ? sizes.groups == 1 : expected == size) &&
          settings.flag("desc_act") != true,
      "is quantized by GPTQ, but has no \"g_idx\", and {} columns in {} groups "
      "do not fit the configuration",
      sizes.columns,
      sizes.groups);
  for (int64_t i = 0; i < sizes.columns; ++i) {
    result[static_cast<size_t>(i)] = static_cast<int32_t>(i / size);
  }
  return result;
}

} // namespace

files::StoredValues read_gptq(const Group& group, const Settings& settings) {
  const auto offset = offset_of(settings);
  group.check_fields({"qweight", "qzeros", "scales", "g_idx"});
  for (const auto* field : {"rotation", "adapter"}) {
    refuse_unless(
        settings.get(field).is_null(),
        "is quantized by GPTQ with \"{}\", which is not read",
        field);
  }
  const auto sizes = sizes_of(group, settings);
  files::StoredValues result;
  result.form = format_text("GPTQ of {} bits", sizes.bits);
  result.shape = {sizes.rows, sizes.columns};
  result.decode = files::floats_by(GptqDecoder{
      group.fields.at("qweight"),
      group.fields.at("qzeros"),
      group.fields.at("scales"),
      sizes,
      offset,
      groups_of_columns(group, sizes, settings)});
  return result;
}

} // namespace torch_attention::weights::quantized
