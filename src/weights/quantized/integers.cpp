#include <weights/quantized/integers.h>

#include <weights/quantized/bits.h>
#include <weights/text.h>

#include <algorithm>
#include <vector>

namespace torch_attention::weights::quantized {

namespace {

/// Zero points of the blocks of a grid.
struct ZeroPoints {
  torch::Tensor tensor; // undefined if all are zero
  bool is_packed = false;
  int bits = 8;
  int64_t width = 0;

  int32_t at(int64_t index) const {
    if (!tensor.defined()) {
      return 0;
    }
    if (!is_packed) {
      return static_cast<const int8_t*>(tensor.const_data_ptr())[index];
    }
    // The zero points in a column of blocks are packed, from the first row on.
    const auto* words = static_cast<const uint32_t*>(tensor.const_data_ptr());
    const PackedBits stored{words + index % width, width, bits};
    return static_cast<int32_t>(stored.at(index / width)) - (1 << (bits - 1));
  }
};

/// Integers, with their scales and zero points.
struct IntegerDecoder {
  torch::Tensor weight; // int8, or words
  torch::Tensor scale;
  ZeroPoints zeros;
  Grid grid;
  int bits = 8;
  /// The group of each column; empty if groups follow each other.
  std::vector<int32_t> group_of;

  void operator()(float* values) const {
    if (weight.scalar_type() == torch::kChar) {
      const auto* integers =
          static_cast<const int8_t*>(weight.const_data_ptr());
      decode(values, [integers](int64_t, int64_t from) {
        return [integers, from](int64_t i) -> int32_t {
          return integers[from + i];
        };
      });
      return;
    }
    const auto* words = static_cast<const uint32_t*>(weight.const_data_ptr());
    const auto offset = 1 << (bits - 1);
    const auto width = weight.size(1);
    decode(values, [&](int64_t row, int64_t from) {
      const PackedBits stored{words + row * width, 1, bits};
      const auto first = from - row * grid.columns;
      return [stored, offset, first](int64_t i) {
        return static_cast<int32_t>(stored.at(first + i)) - offset;
      };
    });
  }

 private:
  /// `integers_of` returns the integers from an offset in a row on.
  template <typename IntegersOf>
  void decode(float* values, const IntegersOf& integers_of) const {
    if (!group_of.empty()) {
      decode_columns(values, integers_of);
      return;
    }
    const Numbers scales(scale);
    for_each_run(grid, [&](int64_t from, int64_t to, int64_t index) {
      const auto factor = scales.at(index);
      const auto zero = zeros.at(index);
      const auto integers = integers_of(from / grid.columns, from);
      for (auto i = from; i < to; ++i) {
        values[i] = static_cast<float>(integers(i - from) - zero) * factor;
      }
    });
  }

  template <typename IntegersOf>
  void decode_columns(float* values, const IntegersOf& integers_of) const {
    const Numbers scales(scale);
    const auto width = grid.width();
    for (int64_t row = 0; row < grid.rows; ++row) {
      const auto start = row * grid.columns;
      const auto integers = integers_of(row, start);
      for (int64_t i = 0; i < grid.columns; ++i) {
        const auto index = row * width + group_of[static_cast<size_t>(i)];
        values[start + i] = static_cast<float>(integers(i) - zeros.at(index)) *
            scales.at(index);
      }
    }
  }
};

/// Returns the group of each column by `weight_g_idx`, which older versions of
/// the library write; nothing if it has -1: then groups follow each other.
/// Throws `Refused` unless each group has as many columns.
std::vector<int32_t> groups_by_index(
    const Group& group,
    const Scheme& scheme,
    const Grid& grid) {
  if (!group.has("weight_g_idx")) {
    return {};
  }
  const auto& indices = group.get("weight_g_idx", {torch::kInt});
  group.check_shape("weight_g_idx", {grid.columns});
  refuse_unless(
      scheme.strategy == "group",
      "is quantized by \"compressed-tensors\" with a \"weight_g_idx\", but "
      "not in groups");
  const auto* from = indices.const_data_ptr<int32_t>();
  std::vector<int32_t> result(from, from + grid.columns);
  if (std::find(result.begin(), result.end(), -1) != result.end()) {
    return {};
  }
  std::vector<int64_t> sizes(static_cast<size_t>(grid.width()));
  for (const auto index : result) {
    refuse_unless(
        index >= 0 && index < grid.width(),
        "is quantized by \"compressed-tensors\", but its \"weight_g_idx\" has "
        "a value of {}, and there are {} groups",
        index,
        grid.width());
    ++sizes[static_cast<size_t>(index)];
  }
  refuse_unless(
      std::all_of(
          sizes.begin(),
          sizes.end(),
          [&](int64_t size) { return size == grid.block_columns; }),
      "is quantized by \"compressed-tensors\", but the groups in its "
      "\"weight_g_idx\" do not have {} columns each",
      grid.block_columns);
  return result;
}

/// Returns the zero points: packed ones, or int8. Throws `Refused` if they are
/// missing.
ZeroPoints zeros_of(
    const Group& group,
    const Scheme& scheme,
    const torch::Tensor& scale,
    const Grid& grid,
    bool may_be_packed) {
  ZeroPoints zeros;
  if (scheme.is_symmetric && !group.has("weight_zero_point")) {
    return zeros;
  }
  zeros.bits = static_cast<int>(scheme.bits);
  zeros.width = grid.width();
  zeros.is_packed = may_be_packed && !scheme.is_symmetric &&
      (scheme.strategy == "group" || scheme.strategy == "channel");
  zeros.tensor = group.get(
      "weight_zero_point", {zeros.is_packed ? torch::kInt : torch::kChar});
  const auto words = divided_up(product(grid.rows, scheme.bits), 32);
  group.check_shape(
      "weight_zero_point",
      zeros.is_packed ? std::vector<int64_t>{words, zeros.width}
                      : scale.sizes().vec());
  return zeros;
}

/// Returns the shape in `weight_shape`.
std::vector<int64_t> stored_shape(const Group& group) {
  const auto& tensor = group.get("weight_shape", {torch::kLong, torch::kInt});
  group.check_shape("weight_shape", {2});
  const auto sizes = tensor.to(torch::kLong);
  const auto* from = sizes.const_data_ptr<int64_t>();
  return {from[0], from[1]};
}

/// Throws `Refused` if older versions of the library, which left the last bits
/// of each word unused, had packed the columns into as many words.
void check_density(int64_t columns, int64_t words, int64_t bits) {
  const auto in_word = 32 / bits;
  refuse_unless(
      32 % bits == 0 || columns <= in_word ||
          divided_up(columns, in_word) != words,
      "is quantized by \"compressed-tensors\" with {} bits, but whether {} "
      "columns in {} words are packed densely is not known",
      bits,
      columns,
      words);
}

files::StoredValues integer_values(
    const Group& group,
    const Scheme& scheme,
    const torch::Tensor& weight,
    const std::vector<int64_t>& shape,
    bool is_packed) {
  const auto& scale = group.get("weight_scale", kFloats);
  const auto grid = scheme.grid(shape[0], shape[1]);
  scheme.check_scale(scale, grid);
  files::StoredValues result;
  result.form = format_text(
      "compressed-tensors of {} bits in {}", scheme.bits, grid.text());
  result.shape = shape;
  result.decode = files::floats_by(IntegerDecoder{
      weight,
      scale,
      zeros_of(group, scheme, scale, grid, is_packed),
      grid,
      static_cast<int>(scheme.bits),
      groups_by_index(group, scheme, grid)});
  return result;
}

} // namespace

void check_matrix(const torch::Tensor& weight) {
  refuse_unless(
      weight.dim() == 2,
      "is quantized, but has the shape {}, expected two dimensions",
      shape_text(weight.sizes()));
}

files::StoredValues read_integers(const Group& group, const Scheme& scheme) {
  refuse_unless(
      !scheme.is_float && scheme.bits <= 8 &&
          scheme.is_in({"int-quantized", "naive-quantized"}),
      "is quantized by \"compressed-tensors\", but is not read as {} bits in "
      "the format \"{}\"",
      scheme.bits,
      scheme.format);
  group.check_fields({"weight", "weight_scale", "weight_zero_point"});
  const auto& weight = group.get("weight", {torch::kChar});
  check_matrix(weight);
  return integer_values(group, scheme, weight, weight.sizes().vec(), false);
}

files::StoredValues read_packed_integers(
    const Group& group,
    const Scheme& scheme) {
  refuse_unless(
      !scheme.is_float && scheme.bits <= 8 && scheme.is_in({"pack-quantized"}),
      "is quantized by \"compressed-tensors\", but its \"weight_packed\" is not "
      "read as {} bits in the format \"{}\"",
      scheme.bits,
      scheme.format);
  group.check_fields(
      {"weight_packed",
       "weight_scale",
       "weight_zero_point",
       "weight_shape",
       "weight_g_idx"});
  const auto& packed = group.get("weight_packed", {torch::kInt});
  check_matrix(packed);
  const auto shape = stored_shape(group);
  const auto words = packed.size(1);
  refuse_unless(
      shape[0] == packed.size(0) && shape[1] > 0 &&
          divided_up(product(shape[1], scheme.bits), 32) == words,
      "is quantized by \"compressed-tensors\" with {} bits, but its "
      "\"weight_packed\" of {} does not hold the shape {}",
      scheme.bits,
      shape_text(packed.sizes()),
      shape_text(shape));
  check_density(shape[1], words, scheme.bits);
  product(shape[0], shape[1]);
  return integer_values(group, scheme, packed, shape, true);
}

} // namespace torch_attention::weights::quantized
