#include <weights/quantized/torchao.h>

#include <weights/quantized/floats.h>
#include <weights/quantized/fp8.h>
#include <weights/quantized/grid.h>
#include <weights/text.h>

#include <c10/util/BFloat16.h>
#include <c10/util/Half.h>

#include <algorithm>
#include <numeric>
#include <string>
#include <utility>
#include <vector>

namespace torch_attention::weights::quantized {

namespace {

/// The parts of a tensor, and its description.
class TorchaoTensor {
 public:
  TorchaoTensor(const Group& group, const Json& description)
      : group_(group),
        data_(description.get("_data")),
        type_(description.get("_type").as_text().value_or("")) {}

  const std::string& type() const {
    return type_;
  }

  bool has(const std::string& part) const {
    return group_.has(field(part));
  }

  torch::Tensor get(
      const std::string& part,
      std::initializer_list<torch::ScalarType> dtypes) const {
    return group_.get(field(part), dtypes);
  }

  const Json& attribute(const char* name) const {
    return data_.get(name);
  }

  [[noreturn]] void refuse(const char* name) const {
    throw Refused(format_text(
        "is quantized by \"torchao\" as {} with \"{}\": {}, which is not read",
        type_,
        name,
        attribute(name).shown(100)));
  }

  /// Throws `Refused` unless the parts are those that the description lists,
  /// and all of these and its attributes are known.
  void check_names(
      const Json& listed,
      const std::vector<std::string>& parts,
      const std::vector<std::string>& attributes) const {
    for (const auto& name : listed.elements()) {
      const auto part = name.as_text().value_or("");
      refuse_unless(
          contains(parts, part),
          "is quantized by \"torchao\" as {} with a \"{}\", which is not read",
          type_,
          part);
      refuse_unless(has(part), "is quantized, but has no \"{}\"", field(part));
    }
    size_t found = 0;
    for (const auto& part : parts) {
      found += has(part) ? 1 : 0;
    }
    refuse_unless(
        found == group_.fields.size() && found == listed.elements().size(),
        "is quantized by \"torchao\" as {}, but its description lists {}, and "
        "the file has {}",
        type_,
        listed.shown(200),
        quoted_list(group_.keys));
    for (const auto& [name, value] : data_.fields()) {
      if (!contains(attributes, name)) {
        refuse(name.c_str());
      }
    }
  }

  /// Returns the dtype in an attribute.
  std::string dtype_name(const char* name) const {
    const auto& value = attribute(name);
    const auto text = value.get("_data").as_text();
    if (value.get("_type").as_text() != "torch.dtype" || !text) {
      refuse(name);
    }
    return *text;
  }

  /// Returns the dtype of the original tensor.
  torch::ScalarType dtype(const char* name) const {
    const auto text = dtype_name(name);
    if (text == "float32") {
      return torch::kFloat;
    }
    if (text == "bfloat16") {
      return torch::kBFloat16;
    }
    if (text != "float16") {
      refuse(name);
    }
    return torch::kHalf;
  }

  /// Returns an attribute that is true or false; false if it is null.
  bool flag(const char* name) const {
    const auto& value = attribute(name);
    if (!value.is_null() && !value.as_flag()) {
      refuse(name);
    }
    return value.as_flag().value_or(false);
  }

  /// Returns the blocks of a tensor of this shape by `block_size`, as those of
  /// a matrix whose rows are all its rows.
  Grid blocks(torch::IntArrayRef shape) const {
    const auto& sizes = attribute("block_size").elements();
    if (shape.empty() || sizes.size() != shape.size()) {
      refuse("block_size");
    }
    Grid grid;
    grid.rows =
        std::accumulate(shape.begin(), shape.end() - 1, int64_t{1}, product);
    grid.columns = shape.back();
    bool is_partial = false;
    for (auto i = shape.size(); i-- > 0;) {
      const auto size = sizes[i].as_integer().value_or(0);
      const bool is_column = i + 1 == shape.size();
      if (size <= 0 || shape[i] % size != 0 ||
          (is_partial && !is_column && size != 1)) {
        refuse("block_size");
      }
      if (is_column) {
        grid.block_columns = size;
      } else {
        grid.block_rows *= size;
        is_partial = size != shape[i];
      }
    }
    return grid;
  }

  /// Throws `Refused` unless a part has one number for each block.
  void check_blocks(const std::string& part, torch::IntArrayRef shape) const {
    const auto& sizes = attribute("block_size").elements();
    std::vector<int64_t> expected;
    for (size_t i = 0; i < shape.size(); ++i) {
      expected.push_back(shape[i] / *sizes[i].as_integer());
    }
    group_.check_shape(field(part), expected);
  }

 private:
  std::string field(const std::string& part) const {
    return format_text("_{}_{}", group_.parameter, part);
  }

  const Group& group_;
  const Json& data_;
  std::string type_;
};

/// Rounds a number to a dtype of C++.
template <typename T>
float rounded(float value) {
  return static_cast<float>(static_cast<T>(value));
}

/// int8 with scales and zero points.
struct TorchaoIntegers {
  torch::Tensor weight;
  torch::Tensor scale;
  torch::Tensor zero; // undefined if all are zero
  Grid grid;

  template <typename T>
  void write(T* values) const {
    const auto* integers = static_cast<const int8_t*>(weight.const_data_ptr());
    const Numbers scales(scale);
    const bool has_integers =
        zero.defined() && zero.scalar_type() == torch::kChar;
    const auto zeros =
        zero.defined() && !has_integers ? Numbers(zero) : Numbers();
    for_each_run(grid, [&](int64_t from, int64_t to, int64_t index) {
      float least = 0;
      if (has_integers) {
        least = static_cast<const int8_t*>(zero.const_data_ptr())[index];
      } else if (zero.defined()) {
        least = rounded<T>(zeros.at(index));
      }
      const auto factor = scales.at(index);
      for (auto i = from; i < to; ++i) {
        const auto stored = static_cast<float>(integers[i]);
        values[i] = static_cast<T>(rounded<T>(stored - least) * factor);
      }
    });
  }
};

/// FP8 with scales.
struct TorchaoFloats {
  torch::Tensor weight;
  torch::Tensor scale;
  Grid grid;

  template <typename T>
  void write(T* values) const {
    write_fp8(weight, scale, grid, values);
  }
};

/// FP8, or two FP4 in each byte, with scales of a byte for groups of columns.
struct TorchaoGroups {
  torch::Tensor weight;
  torch::Tensor scale;
  /// By what scales are multiplied.
  torch::Tensor global; // undefined for 1
  Grid grid;
  bool is_swizzled = false;

  template <typename T>
  void write(T* values) const {
    const Numbers scales(scale);
    const auto whole = global.defined() ? Numbers(global).at(0) : 1.0F;
    const bool is_fp4 = weight.scalar_type() == torch::kByte;
    const auto& fp4 = fp4_table();
    const auto& fp8 = table_of(weight.scalar_type());
    const auto* bytes = static_cast<const uint8_t*>(weight.const_data_ptr());
    for_each_run(grid, [&](int64_t from, int64_t to, int64_t index) {
      auto factor = scales.at(is_swizzled ? swizzled(index) : index);
      // torchao rounds only the exponents.
      factor = is_nv() ? whole * factor : rounded<T>(factor);
      for (auto i = from; i < to; ++i) {
        const auto value = is_fp4 ? fp4[bytes[i / 2] >> (i % 2 * 4) & 15]
                                  : rounded<T>(fp8[bytes[i]]);
        values[i] = static_cast<T>(value * factor);
      }
    });
  }

 private:
  bool is_nv() const {
    return scale.scalar_type() == torch::kFloat8_e4m3fn;
  }

  /// Returns where the scale of a group is in tiles of 128 x 4: their rows are
  /// those of 32 groups of four rows, 32 rows apart.
  int64_t swizzled(int64_t index) const {
    const auto width = grid.width();
    const auto row = index / width;
    const auto column = index % width;
    const auto tile = row / 128 * divided_up(width, 4) + column / 4;
    return (tile * 32 + row % 32) * 16 + row % 128 / 32 * 4 + column % 4;
  }
};

template <typename Decoder>
files::StoredValues torchao_values(
    const TorchaoTensor& tensor,
    torch::ScalarType dtype,
    torch::IntArrayRef shape,
    Decoder decoder) {
  files::StoredValues result;
  result.form =
      format_text("torchao's {} in {}", tensor.type(), decoder.grid.text());
  result.shape = shape.vec();
  result.dtype = dtype;
  result.decode = [dtype, decoder = std::move(decoder)](void* values) {
    if (dtype == torch::kFloat) {
      decoder.write(static_cast<float*>(values));
    } else if (dtype == torch::kHalf) {
      decoder.write(static_cast<c10::Half*>(values));
    } else {
      decoder.write(static_cast<c10::BFloat16*>(values));
    }
  };
  return result;
}

files::StoredValues read_torchao_integers(const TorchaoTensor& tensor) {
  if (tensor.type() == "IntxUnpackedToInt8Tensor") {
    const auto target = tensor.dtype_name("target_dtype");
    if (target.size() != 4 || !starts_with(target, "int") || target[3] < '1' ||
        target[3] > '8') {
      tensor.refuse("target_dtype");
    }
  }
  TorchaoIntegers decoder;
  decoder.weight = tensor.get("qdata", {torch::kChar});
  const auto shape = decoder.weight.sizes();
  decoder.grid = tensor.blocks(shape);
  decoder.scale = tensor.get("scale", kFloats);
  tensor.check_blocks("scale", shape);
  if (tensor.has("zero_point")) {
    decoder.zero = tensor.get(
        "zero_point",
        {torch::kChar, torch::kFloat, torch::kBFloat16, torch::kHalf});
    tensor.check_blocks("zero_point", shape);
  }
  return torchao_values(tensor, tensor.dtype("dtype"), shape, decoder);
}

files::StoredValues read_torchao_floats(const TorchaoTensor& tensor) {
  TorchaoFloats decoder;
  decoder.weight =
      tensor.get("qdata", {torch::kFloat8_e4m3fn, torch::kFloat8_e5m2});
  const auto shape = decoder.weight.sizes();
  decoder.scale = tensor.get("scale", kFloats);
  decoder.grid = tensor.blocks(shape);
  tensor.check_blocks("scale", shape);
  return torchao_values(tensor, tensor.dtype("dtype"), shape, decoder);
}

/// Throws `Refused` unless there is one scale for each group.
void check_group_scales(
    const TorchaoTensor& tensor,
    const TorchaoGroups& decoder,
    torch::IntArrayRef shape) {
  const auto& grid = decoder.grid;
  auto expected = shape.vec();
  expected.back() = grid.width();
  bool fits = decoder.scale.sizes() == torch::IntArrayRef(expected);
  if (decoder.is_swizzled) {
    fits = decoder.scale.dim() == static_cast<int64_t>(shape.size()) &&
        decoder.scale.numel() ==
            product(
                divided_up(grid.rows, 128) * divided_up(grid.width(), 4), 512);
  }
  refuse_unless(
      fits,
      "is quantized by \"torchao\" as {}, but its \"scale\" has the shape {}, "
      "which is not that of {} in {}{}",
      tensor.type(),
      shape_text(decoder.scale.sizes()),
      shape_text(shape),
      grid.text(),
      decoder.is_swizzled ? ", swizzled" : "");
}

files::StoredValues read_torchao_groups(const TorchaoTensor& tensor) {
  const bool is_nv = tensor.type() == "NVFP4Tensor";
  const auto element = is_nv ? "" : tensor.dtype_name("elem_dtype");
  const bool is_fp4 = is_nv || element == "float4_e2m1fn_x2";
  if (!is_fp4 && element != "float8_e4m3fn" && element != "float8_e5m2") {
    tensor.refuse("elem_dtype");
  }
  TorchaoGroups decoder;
  decoder.weight = tensor.get(
      "qdata",
      {is_fp4                         ? torch::kByte
           : element == "float8_e5m2" ? torch::kFloat8_e5m2
                                      : torch::kFloat8_e4m3fn});
  decoder.scale =
      tensor.get("scale", {is_nv ? torch::kFloat8_e4m3fn : kExponent});
  auto shape = decoder.weight.sizes().vec();
  const auto size = tensor.attribute("block_size").as_integer().value_or(0);
  if (shape.size() < 2 || shape.size() > 3 || size <= 0) {
    tensor.refuse("block_size");
  }
  shape.back() = product(shape.back(), is_fp4 ? 2 : 1);
  if (shape.back() % size != 0) {
    tensor.refuse("block_size");
  }
  decoder.grid.rows = decoder.weight.numel() / decoder.weight.size(-1);
  decoder.grid.columns = shape.back();
  decoder.grid.block_columns = size;
  product(decoder.grid.rows, decoder.grid.columns);
  decoder.is_swizzled = tensor.flag("is_swizzled_scales");
  check_group_scales(tensor, decoder, shape);
  if (is_nv && tensor.has("per_tensor_scale")) {
    decoder.global = tensor.get("per_tensor_scale", {torch::kFloat});
    refuse_unless(
        decoder.global.dim() == 0,
        "is quantized by \"torchao\" as NVFP4Tensor, but its "
        "\"per_tensor_scale\" has the shape {}, which is not read",
        shape_text(decoder.global.sizes()));
  }
  return torchao_values(tensor, tensor.dtype("orig_dtype"), shape, decoder);
}

/// How a class of torchao is read.
struct TorchaoClass {
  const char* name;
  std::vector<std::string> parts;
  std::vector<std::string> attributes;
  files::StoredValues (*read)(const TorchaoTensor& tensor);
};

const std::vector<TorchaoClass>& torchao_classes() {
  // Activations are quantized by `act_quant_kwargs` and so on: these do not
  // change weights.
  static const std::vector<TorchaoClass> classes = {
      {"Int8Tensor",
       {"qdata",
        "scale",
        "zero_point",
        "act_quant_scale",
        "act_quant_zero_point"},
       {"block_size", "dtype", "act_quant_kwargs", "reduce_range"},
       read_torchao_integers},
      {"IntxUnpackedToInt8Tensor",
       {"qdata", "scale", "zero_point"},
       {"target_dtype", "block_size", "dtype", "activation_quantization"},
       read_torchao_integers},
      {"Float8Tensor",
       {"qdata", "scale"},
       {"block_size",
        "mm_config",
        "act_quant_kwargs",
        "kernel_preference",
        "dtype"},
       read_torchao_floats},
      {"MXTensor",
       {"qdata", "scale"},
       {"elem_dtype",
        "block_size",
        "orig_dtype",
        "kernel_preference",
        "act_quant_kwargs",
        "is_swizzled_scales"},
       read_torchao_groups},
      {"NVFP4Tensor",
       {"qdata", "scale", "per_tensor_scale", "act_per_tensor_scale"},
       {"block_size",
        "orig_dtype",
        "is_swizzled_scales",
        "use_triton_kernel",
        "act_quant_kwargs"},
       read_torchao_groups},
  };
  return classes;
}

} // namespace

files::StoredValues read_torchao(
    const Group& group,
    const Json& description,
    const Settings& settings) {
  check_method(settings, "torchao", {"torchao"});
  const TorchaoTensor tensor(group, description);
  const auto& classes = torchao_classes();
  const auto found =
      std::find_if(classes.begin(), classes.end(), [&](const auto& each) {
        return tensor.type() == each.name;
      });
  refuse_unless(
      found != classes.end(),
      "is quantized by \"torchao\" as {}, which is not read",
      tensor.type());
  tensor.check_names(
      description.get("_tensor_data_names"), found->parts, found->attributes);
  return found->read(tensor);
}

} // namespace torch_attention::weights::quantized
