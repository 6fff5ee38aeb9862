#include <jit/compare_models.h>

#include <torch/csrc/jit/serialization/import.h>
#include <torch/utils.h>

#include <algorithm>
#include <cmath>
#include <exception>
#include <sstream>

namespace torch_attention::graphs {

namespace {

using torch::Tensor;

void collect_tensors(const c10::IValue& value, std::vector<Tensor>& tensors) {
  value.visit([&](const c10::IValue& part) {
    if (part.isTensor()) {
      tensors.push_back(part.toTensor());
    }
    return false;
  });
}

/// Returns the allowed difference, relative to the largest element.
double tolerance_of(torch::ScalarType dtype) {
  switch (dtype) {
    case torch::kDouble:
      return 1e-10;
    case torch::kFloat:
      return 1e-5;
    default:
      return 3e-2;
  }
}

std::string difference_of(const Tensor& actual, const Tensor& expected) {
  if (actual.defined() != expected.defined()) {
    return "by a tensor";
  }
  if (!expected.defined()) {
    return {};
  }
  if (actual.sizes() != expected.sizes() ||
      actual.scalar_type() != expected.scalar_type()) {
    std::ostringstream text;
    text << "in shape or dtype: " << actual.toString() << actual.sizes()
         << ", not " << expected.toString() << expected.sizes();
    return text.str();
  }
  if (!expected.is_floating_point() || expected.numel() == 0) {
    return actual.equal(expected) ? "" : "in numbers that are no floats";
  }
  const auto tolerance = tolerance_of(expected.scalar_type());
  const auto a = actual.to(torch::kDouble);
  const auto e = expected.to(torch::kDouble);
  const auto finite = e.isfinite();
  const auto largest =
      std::max(1.0, e.where(finite, 0).abs().max().item<double>());
  if (a.isclose(e, 0, tolerance * largest, /*equal_nan=*/true)
          .all()
          .item<bool>()) {
    return {};
  }
  std::ostringstream text;
  text << "by " << (a - e).abs().max().item<double>();
  return text.str();
}

} // namespace

c10::IValue run_copy(
    const torch::jit::Module& module,
    const std::vector<c10::IValue>& inputs) {
  const torch::NoGradGuard no_grad;
  std::vector<c10::IValue> copies;
  copies.reserve(inputs.size());
  for (const auto& input : inputs) {
    copies.push_back(input.deepcopy());
  }
  return module.deepcopy().forward(copies);
}

std::string difference_of(
    const c10::IValue& actual,
    const c10::IValue& expected) {
  std::vector<Tensor> a;
  std::vector<Tensor> e;
  collect_tensors(actual, a);
  collect_tensors(expected, e);
  if (a.size() != e.size()) {
    return "in the number of tensors";
  }
  for (size_t i = 0; i < a.size(); ++i) {
    auto difference = difference_of(a[i], e[i]);
    if (!difference.empty()) {
      return difference;
    }
  }
  return {};
}

std::string obstacle_to_saving(const torch::jit::Module& module) {
  try {
    std::stringstream memory;
    module.deepcopy(torch::kMeta).save(memory);
    torch::jit::load(memory);
  } catch (const std::exception& error) {
    return error.what();
  }
  return {};
}

} // namespace torch_attention::graphs
