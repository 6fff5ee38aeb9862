#include <torch_attention/distributed/sequence_parallel.h>

#include <check.h>
#include <distributed/communication.h>

#include <map>
#include <sstream>

namespace torch_attention::distributed {

void sum_gradients(
    const std::vector<torch::Tensor>& parameters,
    const Group& group,
    double divisor) {
  constexpr auto kName = "sum_gradients";
  const torch::NoGradGuard no_grad;
  check_group(kName, group);
  TORCH_ATTENTION_CHECK(
      divisor > 0,
      "sum_gradients: expected a divisor > 0, but got {}",
      divisor);
  if (parameters.empty()) {
    return;
  }
  std::ostringstream text;
  text.precision(kDigits);
  text << "divisor " << divisor << ", " << parameters.size() << " parameters";
  for (const auto& parameter : parameters) {
    text << ", " << parameter.scalar_type() << ' ' << parameter.sizes()
         << (parameter.requires_grad() ? "" : " without a gradient");
  }
  compare(group, kName, text.str(), parameters.front().device())();
  // Concatenated by dtype, for one all-reduce each.
  std::map<torch::ScalarType, std::vector<torch::Tensor>> by_dtype;
  for (const auto& parameter : parameters) {
    if (parameter.requires_grad()) {
      by_dtype[parameter.scalar_type()].push_back(parameter);
    }
  }
  for (const auto& [dtype, with_gradient] : by_dtype) {
    std::vector<torch::Tensor> flat;
    for (const auto& parameter : with_gradient) {
      const auto& gradient = parameter.grad();
      flat.push_back(
          gradient.defined()
              ? gradient.reshape({-1})
              : torch::zeros({parameter.numel()}, parameter.options()));
    }
    const auto all = torch::cat(flat);
    all_reduce(group, all, "the sum of gradients");
    all.div_(divisor);
    int64_t begin = 0;
    for (const auto& parameter : with_gradient) {
      const auto sum =
          all.narrow(0, begin, parameter.numel()).view(parameter.sizes());
      begin += parameter.numel();
      if (parameter.grad().defined()) {
        parameter.grad().copy_(sum);
      } else {
        parameter.mutable_grad() = sum.clone();
      }
    }
  }
}

} // namespace torch_attention::distributed
