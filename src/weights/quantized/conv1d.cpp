#include <weights/quantized/conv1d.h>

#include <weights/text.h>

#include <array>
#include <string_view>

namespace torch_attention::weights::quantized {

namespace {

constexpr std::array<const char*, 3> kWeights = {
    "c_attn.weight",
    "q_attn.weight",
    "c_proj.weight"};

/// Returns whether a weight that is not quantized may be (in, out). Only the
/// joined weight of queries, keys and values tells by its shape.
bool may_be_transposed(std::string_view name, const torch::Tensor& weight) {
  const bool is_plain = weight.is_floating_point() && weight.element_size() > 1;
  const bool is_linear = name == kWeights.front() && weight.dim() == 2 &&
      weight.size(0) > weight.size(1);
  return is_plain && !is_linear;
}

} // namespace

std::set<std::string> quantized_in_part(
    const StateDict& tensors,
    const std::set<std::string>& joined) {
  std::set<std::string> result;
  for (const auto& name : joined) {
    for (const std::string_view own : kWeights) {
      if (!ends_with_names(name, own)) {
        continue;
      }
      for (const std::string_view other : kWeights) {
        auto key = name.substr(0, name.size() - own.size());
        key += other;
        const auto* weight =
            joined.count(key) == 0 ? tensors.find(key) : nullptr;
        if (weight != nullptr && may_be_transposed(other, *weight)) {
          result.insert({name, key});
        }
      }
    }
  }
  return result;
}

} // namespace torch_attention::weights::quantized
