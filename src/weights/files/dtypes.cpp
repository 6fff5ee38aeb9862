#include <weights/files/dtypes.h>

#include <c10/util/Exception.h>
#include <torch/version.h>

#include <algorithm>
#include <array>

namespace torch_attention::weights::files {

namespace {

/// The names of a dtype; empty if a format has none.
struct Names {
  torch::ScalarType dtype;
  std::string_view python;
  std::string_view storage;
  std::string_view safetensors;
  /// The number in `torch.export`; 0 if it has none.
  int64_t exported;
};

using torch::ScalarType;

constexpr std::array kDtypes {
  Names{ScalarType::Bool, "bool", "Bool", "BOOL", 12},
      Names{ScalarType::Byte, "uint8", "Byte", "U8", 1},
      Names{ScalarType::Char, "int8", "Char", "I8", 2},
      Names{ScalarType::Short, "int16", "Short", "I16", 3},
      Names{ScalarType::Int, "int32", "Int", "I32", 4},
      Names{ScalarType::Long, "int64", "Long", "I64", 5},
      Names{ScalarType::UInt16, "uint16", "UInt16", "U16", 28},
      Names{ScalarType::UInt32, "uint32", "UInt32", "U32", 34},
      Names{ScalarType::UInt64, "uint64", "UInt64", "U64", 35},
      Names{ScalarType::Half, "float16", "Half", "F16", 6},
      Names{ScalarType::BFloat16, "bfloat16", "BFloat16", "BF16", 13},
      Names{ScalarType::Float, "float32", "Float", "F32", 7},
      Names{ScalarType::Double, "float64", "Double", "F64", 8},
      Names{ScalarType::ComplexHalf, "complex32", "ComplexHalf", "", 9},
      Names{ScalarType::ComplexFloat, "complex64", "ComplexFloat", "C64", 10},
      Names{ScalarType::ComplexDouble, "complex128", "ComplexDouble", "", 11},
      Names{
          ScalarType::Float8_e5m2, "float8_e5m2", "Float8_e5m2", "F8_E5M2", 30},
      Names{
          ScalarType::Float8_e4m3fn,
          "float8_e4m3fn",
          "Float8_e4m3fn",
          "F8_E4M3",
          29},
      Names{
          ScalarType::Float8_e5m2fnuz,
          "float8_e5m2fnuz",
          "Float8_e5m2fnuz",
          "F8_E5M2FNUZ",
          32},
      Names{
          ScalarType::Float8_e4m3fnuz,
          "float8_e4m3fnuz",
          "Float8_e4m3fnuz",
          "F8_E4M3FNUZ",
          31},
      Names{ScalarType::Bits8, "bits8", "Bits8", "", 0},
      Names{ScalarType::Bits16, "bits16", "Bits16", "", 0},
      Names{ScalarType::Bits1x8, "bits1x8", "Bits1x8", "", 0},
      Names{ScalarType::Bits2x4, "bits2x4", "Bits2x4", "", 0},
      Names{ScalarType::Bits4x2, "bits4x2", "Bits4x2", "", 0},
#if TORCH_VERSION_MAJOR > 2 || TORCH_VERSION_MINOR >= 7
      Names{
          ScalarType::Float8_e8m0fnu,
          "float8_e8m0fnu",
          "Float8_e8m0fnu",
          "F8_E8M0",
          33},
#endif
#if TORCH_VERSION_MAJOR > 2 || TORCH_VERSION_MINOR >= 8
      Names{
          ScalarType::Float4_e2m1fn_x2,
          "float4_e2m1fn_x2",
          "Float4_e2m1fn_x2",
          "",
          0},
#endif
};

template <typename Predicate>
std::optional<ScalarType> find(const Predicate& predicate) {
  const auto* found = std::find_if(kDtypes.begin(), kDtypes.end(), predicate);
  return found == kDtypes.end() ? std::nullopt : std::optional(found->dtype);
}

const Names* names_of(ScalarType dtype) {
  const auto* found =
      std::find_if(kDtypes.begin(), kDtypes.end(), [dtype](const Names& names) {
        return names.dtype == dtype;
      });
  return found == kDtypes.end() ? nullptr : found;
}

/// Returns the text between `prefix` and `suffix`; "" if one is missing.
std::string_view between(
    std::string_view text,
    std::string_view prefix,
    std::string_view suffix) {
  const auto ends = prefix.size() + suffix.size();
  if (text.size() <= ends || text.substr(0, prefix.size()) != prefix ||
      text.substr(text.size() - suffix.size()) != suffix) {
    return {};
  }
  return text.substr(prefix.size(), text.size() - ends);
}

} // namespace

std::optional<ScalarType> dtype_from_python(std::string_view name) {
  const auto core = between(name, "torch.", "");
  return find([&](const Names& names) { return names.python == core; });
}

std::optional<ScalarType> dtype_from_storage(std::string_view name) {
  const auto core = between(name, "torch.", "Storage");
  return find([&](const Names& names) { return names.storage == core; });
}

std::optional<ScalarType> dtype_from_safetensors(std::string_view name) {
  return find([&](const Names& names) {
    return !name.empty() && names.safetensors == name;
  });
}

std::optional<std::string_view> safetensors_dtype(ScalarType dtype) {
  const auto* names = names_of(dtype);
  return names == nullptr || names->safetensors.empty()
      ? std::nullopt
      : std::optional(names->safetensors);
}

std::string_view python_dtype(ScalarType dtype) {
  const auto* names = names_of(dtype);
  return names == nullptr ? torch::toString(dtype) : names->python;
}

std::optional<ScalarType> dtype_from_export(int64_t number) {
  return find([&](const Names& names) {
    return number != 0 && names.exported == number;
  });
}

} // namespace torch_attention::weights::files
