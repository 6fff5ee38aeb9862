#include <weights/pretrained/quantized.h>

#include <check.h>
#include <format_text.h>
#include <weights/text.h>

#include <c10/core/ScalarType.h>

#include <algorithm>

namespace torch_attention::weights::pretrained {

namespace {

/// Returns the method of quantization, such as "fp8"; empty if the
/// configuration has none.
std::string method_of(ModelConfig& config) {
  for (const auto* field : {"quantization_config", "compression_config"}) {
    const auto fields = config.object(field);
    if (!fields.fields().empty()) {
      return fields.get("quant_method").as_text().value_or(field);
    }
  }
  return "";
}

/// Returns whether a tensor has values that need a scale. Bool masks and
/// indices do not.
bool is_packed(const torch::Tensor& tensor) {
  return tensor.scalar_type() != torch::kBool &&
      tensor.scalar_type() != torch::kLong &&
      (!tensor.is_floating_point() || tensor.element_size() < 2);
}

/// Returns whether a reason is one of `join_quantized`.
bool is_of_quantization(const std::string& reason) {
  return starts_with(reason, "is quantized") ||
      starts_with(reason, "has tensors of ");
}

} // namespace

void check_not_quantized(
    ModelConfig& config,
    const files::WeightFile& file,
    const std::string& path) {
  const auto start = path + ".";
  const auto method = method_of(config);
  const auto is_quantized = [&](const std::string& key, bool packed) {
    const bool is_weight =
        !method.empty() || key.find("weight") != std::string::npos;
    return packed && is_weight && starts_with(key, start);
  };
  const bool found = std::any_of(
      file.tensors.begin(), file.tensors.end(), [&](const auto& item) {
        return is_quantized(item.key(), is_packed(item.value()));
      });
  const auto unreadable = std::find_if(
      file.unreadable.begin(), file.unreadable.end(), [&](const auto& each) {
        return is_quantized(
            each.first, !method.empty() || is_of_quantization(each.second));
      });
  const bool has_reason = unreadable != file.unreadable.end();
  TORCH_ATTENTION_CHECK(
      !found && !has_reason,
      "the weights of \"{}\" are quantized{}, which is not read{}: load the "
      "model in transformers, call dequantize() on it, and save_pretrained "
      "it into another folder",
      path,
      method.empty() ? ""
                     : format_text(" by {} (\"{}\")", method, config.path()),
      has_reason
          ? format_text(" (\"{}\" {})", unreadable->first, unreadable->second)
          : "");
}

} // namespace torch_attention::weights::pretrained
