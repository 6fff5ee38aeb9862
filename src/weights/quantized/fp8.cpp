#include <weights/quantized/fp8.h>

#include <weights/text.h>

#include <algorithm>
#include <array>

namespace torch_attention::weights::quantized {

namespace {

constexpr std::array<const char*, 4> kScales = {
    "weight_scale_inv",
    "weight_scale",
    "scale",
    "qscale_weight"};

/// Returns the name of the scales. Throws `Refused` if there are none.
std::string scale_of(const Group& group) {
  std::string name;
  for (const auto* field : kScales) {
    if (name.empty() && group.has(field)) {
      name = field;
    }
  }
  refuse_unless(
      !name.empty(),
      "is quantized as FP8, but has no \"weight_scale_inv\" or "
      "\"weight_scale\"");
  return name;
}

/// Returns two positive integers of a list.
std::pair<int64_t, int64_t> block_size(const Json& list) {
  const auto sizes = two_positive(list);
  refuse_unless(
      sizes.has_value(),
      "is quantized as FP8, but \"weight_block_size\" of the configuration is "
      "{}, expected two positive integers",
      list.shown(100));
  return *sizes;
}

/// Returns the size of blocks: that of the configuration, or 128 x 128, which
/// transformers takes without one; none if weights have no blocks. Without a
/// configuration only whole blocks, or a single one, tell their size.
std::optional<std::pair<int64_t, int64_t>> block_of(
    const Settings& settings,
    const torch::Tensor& weight,
    const torch::Tensor& scale) {
  constexpr std::pair<int64_t, int64_t> kDefault = {128, 128};
  if (settings.exist() && settings.method() != "fp8") {
    return std::nullopt;
  }
  if (!settings.exist() && scale.numel() > 1 &&
      (weight.size(0) % kDefault.first != 0 ||
       weight.size(1) % kDefault.second != 0)) {
    return std::nullopt;
  }
  if (!settings.contains("weight_block_size")) {
    return kDefault;
  }
  const auto& size = settings.get("weight_block_size");
  return size.is_null() ? std::nullopt : std::optional(block_size(size));
}

/// Throws `Refused` unless the method has scales of this name.
void check_fp8_settings(const Settings& settings, const std::string& scale) {
  check_method(settings, "FP8", {"fp8", "fbgemm_fp8", "modelopt"});
  refuse_unless(
      !settings.exist() || settings.method() == "fp8" ||
          scale == "weight_scale",
      "is quantized as FP8 by \"{}\", but its scale is called \"{}\"",
      settings.method(),
      scale);
  if (settings.method() == "modelopt") {
    const auto algorithm = settings.text({"quant_algo"});
    refuse_unless(
        algorithm == "fp8",
        "is quantized by \"modelopt\" as \"{}\", which is not read",
        algorithm.value_or(""));
  }
}

/// Bytes of FP8 and their scales.
struct Fp8Decoder {
  torch::Tensor weight;
  torch::Tensor scale;
  Grid grid;

  void operator()(float* values) const {
    write_fp8(weight, scale, grid, values);
  }
};

} // namespace

bool is_fp8(torch::ScalarType dtype) {
  return dtype == torch::kFloat8_e4m3fn || dtype == torch::kFloat8_e5m2;
}

bool is_scaled_fp8(const Group& group, const Settings& settings) {
  const auto* weight = group.find("weight");
  return weight != nullptr && is_fp8(weight->scalar_type()) &&
      (settings.exist() || group.has("weight_scale_2") ||
       std::any_of(kScales.begin(), kScales.end(), [&](const char* field) {
         return group.has(field);
       }));
}

files::StoredValues fp8_values(
    const torch::Tensor& weight,
    const torch::Tensor& scale,
    const Grid& grid) {
  files::StoredValues result;
  result.form = "FP8 in " + grid.text();
  result.shape = weight.sizes().vec();
  result.decode = files::floats_by(Fp8Decoder{weight, scale, grid});
  return result;
}

files::StoredValues read_fp8(const Group& group, const Settings& settings) {
  const auto name = scale_of(group);
  check_fp8_settings(settings, name);
  group.check_fields({"weight", name});
  const auto& weight =
      group.get("weight", {torch::kFloat8_e4m3fn, torch::kFloat8_e5m2});
  const auto& scale = group.get(
      name,
      {torch::kFloat, torch::kBFloat16, torch::kHalf, kExponent, torch::kByte});
  refuse_unless(
      scale.scalar_type() != torch::kByte ||
          settings.text({"scale_fmt"}) == "ue8m0",
      "is quantized as FP8, but its \"{}\" is Byte, which is read only as "
      "\"scale_fmt\": \"ue8m0\" in the configuration",
      name);
  refuse_unless(
      weight.dim() == 2,
      "is quantized as FP8, but has the shape {}, expected two dimensions",
      shape_text(weight.sizes()));
  const auto block = block_of(settings, weight, scale);
  const auto grid = grid_of(weight, scale.sizes(), block);
  refuse_unless(
      grid.has_value(),
      "is quantized as FP8 with the shape {}, but its \"{}\" has the shape "
      "{}, which is not one scale{}",
      shape_text(weight.sizes()),
      name,
      shape_text(scale.sizes()),
      block ? format_text(
                  ", one for each row, or one for each block of {} x {}",
                  block->first,
                  block->second)
            : " or one for each row");
  return fp8_values(weight, scale, *grid);
}

} // namespace torch_attention::weights::quantized
