#include <torch_attention/weights/convert.h>

#include <error_message.h>
#include <weights/layout_beside.h>
#include <weights/layouts/convert.h>

namespace torch_attention {

ConvertedWeights convert_layout(
    const torch::OrderedDict<std::string, torch::Tensor>& tensors,
    const WeightLayout& source,
    const WeightLayout& target,
    std::optional<int64_t> num_heads) {
  try {
    return weights::layouts::convert(
        tensors, source, target, num_heads, weights::layout_beside("", ""));
  } catch (const std::exception& error) {
    throw_printable("convert_layout: " + error_message(error));
  }
}

} // namespace torch_attention
