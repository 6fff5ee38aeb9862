#include <nn/modules/head_split.h>

#include <c10/util/Exception.h>

namespace torch_attention::detail {

torch::Tensor own_heads(
    const char* name,
    const char* what,
    const torch::Tensor& x,
    const HeadSplitPointer& split) {
  if (split == nullptr || !x.defined() || x.dim() != 4 || x.size(1) == 1) {
    return x;
  }
  TORCH_CHECK(
      x.size(1) == split->heads.all,
      name,
      ": expected a ",
      what,
      " for 1 or all ",
      split->heads.all,
      " heads, of which other processes have some, but got one of shape ",
      x.sizes());
  return x.narrow(1, split->heads.first, split->num_heads);
}

void check_no_function(
    const char* name,
    const ScoreFunction& function,
    const HeadSplitPointer& split) {
  TORCH_CHECK(
      split == nullptr || !function,
      name,
      ": expected no function `scores`, where several processes share the "
      "heads");
}

ForwardOptions own_heads(
    const char* name,
    const ForwardOptions& call,
    const HeadSplitPointer& split) {
  check_no_function(name, call.scores(), split);
  auto result = call;
  result.mask(own_heads(name, "mask", call.mask(), split));
  result.bias(own_heads(name, "bias", call.bias(), split));
  return result;
}

} // namespace torch_attention::detail
