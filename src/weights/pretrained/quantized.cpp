#include <weights/pretrained/quantized.h>

#include <check.h>
#include <format_text.h>
#include <weights/text.h>

#include <c10/core/ScalarType.h>

#include <algorithm>

namespace torch_attention::weights::pretrained {

namespace {

/// Returns whether a tensor has values that need a scale. Bool masks and
/// indices do not.
bool is_packed(const torch::Tensor& tensor) {
  return tensor.scalar_type() != torch::kBool &&
      tensor.scalar_type() != torch::kLong &&
      (!tensor.is_floating_point() || tensor.element_size() < 2);
}

} // namespace

void check_not_quantized(
    const ModelConfig& config,
    const files::WeightFile& file,
    const std::string& path) {
  const auto start = path + ".";
  const auto& method = file.quantization.method;
  const bool found = std::any_of(
      file.tensors.begin(), file.tensors.end(), [&](const auto& item) {
        const bool is_weight =
            !method.empty() || item.key().find("weight") != std::string::npos;
        return is_weight && starts_with(item.key(), start) &&
            is_packed(item.value());
      });
  const auto unreadable = std::find_if(
      file.unreadable.begin(), file.unreadable.end(), [&](const auto& each) {
        return starts_with(each.first, start) &&
            file.quantization.refused.count(each.first) > 0;
      });
  const bool has_reason = unreadable != file.unreadable.end();
  // Its weights are rounded in each call, and so are the tokens.
  TORCH_ATTENTION_CHECK(
      method != "bitnet",
      "the weights of \"{}\" are for a model that rounds them, and its tokens, "
      "in each call (quant_method \"bitnet\" of \"{}\"), which is not computed",
      path,
      config.path());
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
