#include <weights/quantized/bitsandbytes.h>

#include <error_message.h>
#include <json_tree.h>
#include <weights/quantized/floats.h>
#include <weights/quantized/integers.h>
#include <weights/text.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <optional>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

namespace torch_attention::weights::quantized {

namespace {

using FourBitTable = std::array<float, 16>;

constexpr FourBitTable kNf4 = {
    -1.0F,
    -0.6961928009986877F,
    -0.5250730514526367F,
    -0.39491748809814453F,
    -0.28444138169288635F,
    -0.18477343022823334F,
    -0.09105003625154495F,
    0.0F,
    0.07958029955625534F,
    0.16093020141124725F,
    0.24611230194568634F,
    0.33791524171829224F,
    0.44070982933044434F,
    0.5626170039176941F,
    0.7229568362236023F,
    1.0F};

/// The values of three bits over the greatest of them, 12; the highest bit is
/// the sign.
constexpr FourBitTable kFp4 = {
    0.0F,
    0.0625F / 12,
    8.0F / 12,
    12.0F / 12,
    4.0F / 12,
    6.0F / 12,
    2.0F / 12,
    3.0F / 12,
    0.0F,
    -0.0625F / 12,
    -8.0F / 12,
    -12.0F / 12,
    -4.0F / 12,
    -6.0F / 12,
    -2.0F / 12,
    -3.0F / 12};

/// The JSON next to a weight.
struct QuantState {
  std::string type;
  std::vector<int64_t> shape;
  int64_t elements = 1;
  int64_t block = 0;
  int64_t nested_block = 0;
  float nested_offset = 0;
};

/// Scales of blocks of values.
struct Scales {
  torch::Tensor stored; // float32, or uint8
  torch::Tensor nested_scales;
  torch::Tensor nested_values;
  int64_t nested_block = 1;
  float offset = 0;

  float at(int64_t index) const {
    if (!nested_values.defined()) {
      return static_cast<const float*>(stored.const_data_ptr())[index];
    }
    const auto byte =
        static_cast<const uint8_t*>(stored.const_data_ptr())[index];
    const auto value =
        static_cast<const float*>(nested_values.const_data_ptr())[byte];
    const auto scale = static_cast<const float*>(
        nested_scales.const_data_ptr())[index / nested_block];
    // A product in double cannot be fused with the sum, which would round once.
    return static_cast<float>(static_cast<double>(value) * scale) + offset;
  }
};

struct FourBitDecoder {
  torch::Tensor weight;
  Scales scales;
  const FourBitTable* table = &kNf4;
  int64_t elements = 0;
  int64_t block = 1;

  void operator()(float* values) const {
    const auto* bytes = static_cast<const uint8_t*>(weight.const_data_ptr());
    const auto& numbers = *table;
    for (int64_t from = 0, index = 0; from < elements; from += block, ++index) {
      const auto to = from + std::min(block, elements - from);
      const auto scale = scales.at(index);
      // Blocks have an even number of values.
      for (auto i = from; i < to; i += 2) {
        const auto byte = bytes[i / 2];
        values[i] = numbers[byte >> 4] * scale;
        if (i + 1 < to) {
          values[i + 1] = numbers[byte & 15] * scale;
        }
      }
    }
  }
};

struct Int8Decoder {
  torch::Tensor weight;
  torch::Tensor greatest;

  void operator()(float* values) const {
    constexpr auto kFactor = static_cast<float>(7.874015718698502e-3);
    const auto* integers = static_cast<const int8_t*>(weight.const_data_ptr());
    const auto* scales = static_cast<const float*>(greatest.const_data_ptr());
    const auto columns = weight.size(1);
    for (int64_t row = 0; row < weight.size(0); ++row) {
      for (auto i = row * columns; i < (row + 1) * columns; ++i) {
        values[i] = static_cast<float>(integers[i]) * scales[row] * kFactor;
      }
    }
  }
};

constexpr std::string_view kState = "weight.quant_state.bitsandbytes__";

/// Returns the name of the JSON. Throws `Refused` if there are none or several.
std::string state_field(const Group& group) {
  std::vector<std::string> names;
  for (const auto& [field, tensor] : group.fields) {
    if (starts_with(field, "weight.quant_state.")) {
      names.push_back(field);
    }
  }
  refuse_unless(
      names.size() == 1 && starts_with(names.front(), kState),
      "is quantized by bitsandbytes, but has {} \"quant_state\" tensors: {}",
      names.size(),
      quoted_list(names));
  return names.front();
}

/// Returns the value of a field of the JSON, at least `least`.
int64_t integer_of(const Json& state, const char* field, int64_t least) {
  const auto value = state.get(field).as_integer();
  refuse_unless(
      value >= least,
      "is quantized by bitsandbytes, but its \"{}\" is {}, expected at least "
      "{}",
      field,
      state.get(field).shown(100),
      least);
  return *value;
}

Json parsed_state(const torch::Tensor& bytes) {
  std::istringstream text(std::string(
      static_cast<const char*>(bytes.const_data_ptr()),
      static_cast<size_t>(bytes.numel())));
  try {
    // A shape and a few numbers.
    return Json::parse(text, "quant_state", 4, 200);
  } catch (const c10::Error& error) {
    throw Refused(format_text(
        "is quantized by bitsandbytes, but its \"quant_state\" is not JSON: {}",
        error_message(error)));
  }
}

QuantState read_state(const Group& group) {
  const auto field = state_field(group);
  const auto json = parsed_state(group.get(field, {torch::kByte}));
  QuantState state;
  state.type = field.substr(kState.size());
  refuse_unless(
      (state.type == "nf4" || state.type == "fp4") &&
          json.get("quant_type").as_text() == state.type,
      "is quantized by bitsandbytes as {} (\"{}\"), which is not read",
      json.get("quant_type").shown(100),
      field);
  const auto& sizes = json.get("shape").elements();
  refuse_unless(
      !sizes.empty() && sizes.size() <= 8,
      "is quantized by bitsandbytes, but its \"shape\" is {}",
      json.get("shape").shown(100));
  for (const auto& size : sizes) {
    refuse_unless(
        size.as_integer() > 0,
        "is quantized by bitsandbytes, but its \"shape\" is {}",
        json.get("shape").shown(100));
    state.shape.push_back(*size.as_integer());
    state.elements = product(state.elements, state.shape.back());
  }
  state.block = integer_of(json, "blocksize", 2);
  refuse_unless(
      state.block % 2 == 0,
      "is quantized by bitsandbytes in blocks of {}, an odd number",
      state.block);
  if (group.has("weight.nested_absmax")) {
    state.nested_block = integer_of(json, "nested_blocksize", 1);
    const auto offset = json.get("nested_offset").as_number();
    refuse_unless(
        offset.has_value(),
        "is quantized by bitsandbytes, but its \"nested_offset\" is {}",
        json.get("nested_offset").shown(100));
    state.nested_offset = static_cast<float>(*offset);
  }
  return state;
}

/// Throws `Refused` unless a tensor has `count` elements.
void check_count(
    const char* field,
    const torch::Tensor& tensor,
    int64_t count) {
  refuse_unless(
      tensor.numel() == count,
      "is quantized by bitsandbytes, but its \"{}\" has {} elements, expected "
      "{}",
      field,
      tensor.numel(),
      count);
}

Scales scales_of(const Group& group, const QuantState& state) {
  const bool is_nested = state.nested_block > 0;
  const auto blocks = divided_up(state.elements, state.block);
  Scales scales;
  scales.stored =
      group.get("weight.absmax", {is_nested ? torch::kByte : torch::kFloat});
  check_count("weight.absmax", scales.stored, blocks);
  if (is_nested) {
    scales.nested_block = state.nested_block;
    scales.offset = state.nested_offset;
    scales.nested_scales = group.get("weight.nested_absmax", {torch::kFloat});
    check_count(
        "weight.nested_absmax",
        scales.nested_scales,
        divided_up(blocks, state.nested_block));
    scales.nested_values =
        group.get("weight.nested_quant_map", {torch::kFloat});
    check_count("weight.nested_quant_map", scales.nested_values, 256);
  }
  return scales;
}

/// Throws `Refused` if the values in the file are not those of the library.
void check_table(const Group& group, const FourBitTable& table) {
  const auto& stored = group.get("weight.quant_map", {torch::kFloat});
  check_count("weight.quant_map", stored, 16);
  const auto* values = stored.const_data_ptr<float>();
  const bool are_equal = std::equal(
      table.begin(), table.end(), values, [](float expected, float value) {
        return std::abs(expected - value) <= 1e-6F;
      });
  refuse_unless(
      are_equal,
      "is quantized by bitsandbytes with other values in its "
      "\"weight.quant_map\" than those of the library");
}

/// Throws `Refused` unless the bytes of a weight are two values each.
void check_bytes(const torch::Tensor& weight, const QuantState& state) {
  const auto bytes = divided_up(state.elements, 2);
  refuse_unless(
      static_cast<int64_t>(weight.nbytes()) == bytes,
      "is quantized by bitsandbytes, but its \"weight\" has {} bytes, and "
      "{} values of 4 bits have {}",
      weight.nbytes(),
      state.elements,
      bytes);
}

} // namespace

bool is_four_bit(const Group& group) {
  return group.has("weight.absmax") || group.has("weight.quant_map") ||
      group.has_start("weight.quant_state.");
}

files::StoredValues read_four_bit(
    const Group& group,
    const Settings& settings) {
  check_method(settings, "bitsandbytes", {"bitsandbytes"});
  const auto state = read_state(group);
  group.check_fields(
      {"weight",
       "weight.absmax",
       "weight.quant_map",
       "weight.nested_absmax",
       "weight.nested_quant_map",
       std::string(kState) + state.type});
  const auto& table = state.type == "nf4" ? kNf4 : kFp4;
  check_table(group, table);
  // `bnb_4bit_quant_storage`
  const auto& weight = group.get(
      "weight", {torch::kByte, torch::kHalf, torch::kBFloat16, torch::kFloat});
  check_bytes(weight, state);
  files::StoredValues result;
  result.form = state.type == "nf4" ? "NF4" : "FP4";
  result.shape = state.shape;
  result.decode = files::floats_by(FourBitDecoder{
      weight, scales_of(group, state), &table, state.elements, state.block});
  return result;
}

files::StoredValues read_llm_int8(
    const Group& group,
    const Settings& settings) {
  check_method(settings, "bitsandbytes", {"bitsandbytes"});
  group.check_fields({"weight", "SCB", "weight_format"});
  const auto& weight = group.get("weight", {torch::kChar});
  check_matrix(weight);
  const auto& greatest = group.get("SCB", {torch::kFloat});
  group.check_shape("SCB", {weight.size(0)});
  if (group.has("weight_format")) {
    const auto& format = group.get("weight_format", {torch::kByte});
    check_count("weight_format", format, 1);
    const auto value = *static_cast<const uint8_t*>(format.const_data_ptr());
    refuse_unless(
        value == 0,
        "is quantized by bitsandbytes in the \"weight_format\" {}, which is "
        "not read",
        value);
  }
  files::StoredValues result;
  result.form = "LLM.int8()";
  result.shape = weight.sizes().vec();
  result.decode = files::floats_by(Int8Decoder{weight, greatest});
  return result;
}

} // namespace torch_attention::weights::quantized
