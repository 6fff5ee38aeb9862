#include <weights/quantized/compressed_tensors.h>

#include <weights/quantized/fp4.h>
#include <weights/quantized/fp8.h>
#include <weights/quantized/integers.h>
#include <weights/quantized/scheme.h>
#include <weights/text.h>

#include <optional>
#include <string>
#include <vector>

namespace torch_attention::weights::quantized {

namespace {

void refuse_scheme(bool condition, const char* tensor, const Scheme& scheme) {
  refuse_unless(
      condition,
      "is quantized by \"compressed-tensors\" with \"{}\", which is not read as "
      "{} bits of {} in the format \"{}\"",
      tensor,
      scheme.bits,
      scheme.is_float ? "float" : "int",
      scheme.format);
}

files::StoredValues read_floats(const Group& group, const Scheme& scheme) {
  refuse_scheme(
      scheme.is_float && scheme.bits == 8 && scheme.is_symmetric &&
          scheme.is_in({"float-quantized", "naive-quantized"}),
      "weight",
      scheme);
  group.check_fields({"weight", "weight_scale"});
  const auto& weight = group.get("weight", {torch::kFloat8_e4m3fn});
  const auto& scale = group.get("weight_scale", kFloats);
  check_matrix(weight);
  const auto grid = scheme.grid(weight.size(0), weight.size(1));
  scheme.check_scale(scale, grid);
  return fp8_values(weight, scale, grid);
}

/// Returns the values with one scheme.
files::StoredValues read_as(const Group& group, const Scheme& scheme) {
  const auto* packed = group.find("weight_packed");
  if (packed != nullptr) {
    return packed->scalar_type() == torch::kByte
        ? read_fp4(group, scheme)
        : read_packed_integers(group, scheme);
  }
  const auto* weight = group.find("weight");
  return weight != nullptr && is_fp8(weight->scalar_type())
      ? read_floats(group, scheme)
      : read_integers(group, scheme);
}

} // namespace

files::StoredValues read_compressed(
    const Group& group,
    const Settings& settings) {
  check_method(settings, "compressed-tensors", {"compressed-tensors"});
  refuse_unless(
      settings.exist(),
      "is quantized by \"compressed-tensors\", but there is no configuration");
  refuse_unless(
      !group.has("weight") || !group.has("weight_packed"),
      "is quantized, but there is a tensor of this name, too");
  std::optional<files::StoredValues> found;
  std::string reason;
  const auto schemes = schemes_of(settings);
  for (const auto& scheme : schemes) {
    std::optional<files::StoredValues> values;
    try {
      values = read_as(group, scheme);
    } catch (const Refused& refused) {
      reason = refused.what();
      continue;
    }
    refuse_unless(
        !found,
        "is quantized by \"compressed-tensors\", but several of the "
        "\"config_groups\" fit its tensors");
    found = std::move(values);
  }
  refuse_unless(found.has_value(), "{}", reason);
  return std::move(*found);
}

} // namespace torch_attention::weights::quantized
