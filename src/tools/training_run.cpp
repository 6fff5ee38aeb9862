#include <tools/training_run.h>

#include <ATen/Context.h>

#include <algorithm>
#include <cmath>
#include <vector>

namespace torch_attention::tools {

namespace {

const std::string kTrained = "trained ";

/// AdamW with the order of operations in Python's `torch.optim.AdamW`.
/// LibTorch's C++ optimizer rounds differently, which shows after three steps
/// in bfloat16; but the module is to be verified, not the optimizer.
class PythonAdamW {
 public:
  PythonAdamW(const AdamW& options, std::vector<torch::Tensor> parameters)
      : options_(options), parameters_(std::move(parameters)) {
    for (const auto& parameter : parameters_) {
      average_.push_back(torch::zeros_like(parameter));
      square_average_.push_back(torch::zeros_like(parameter));
    }
  }

  void step() {
    torch::NoGradGuard no_grad;
    ++steps_;
    const auto n = static_cast<double>(steps_);
    const auto step_size = options_.lr / (1 - std::pow(options_.beta1, n));
    const auto correction = std::sqrt(1 - std::pow(options_.beta2, n));
    for (size_t i = 0; i < parameters_.size(); ++i) {
      auto& parameter = parameters_[i];
      const auto gradient = parameter.grad();
      if (!gradient.defined()) {
        continue;
      }
      parameter.mul_(1 - options_.lr * options_.weight_decay);
      average_[i].lerp_(gradient, 1 - options_.beta1);
      square_average_[i]
          .mul_(options_.beta2)
          .addcmul_(gradient, gradient, 1 - options_.beta2);
      const auto denominator =
          (square_average_[i].sqrt() / correction).add_(options_.eps);
      parameter.addcdiv_(average_[i], denominator, -step_size);
    }
  }

 private:
  AdamW options_;
  std::vector<torch::Tensor> parameters_;
  std::vector<torch::Tensor> average_;
  std::vector<torch::Tensor> square_average_;
  int64_t steps_ = 0;
};

} // namespace

std::string gradient_name(const std::string& tensor) {
  return "gradient of " + tensor;
}

std::string trained_name(const std::string& parameter) {
  return kTrained + parameter;
}

std::string parameter_of_trained(const std::string& name) {
  return name.rfind(kTrained, 0) == 0 ? name.substr(kTrained.size()) : "";
}

StateDict run(const Trainable& trainable, const TrainingRun& run) {
  const auto& parameters = trainable.parameters;
  const auto device = parameters.begin()->value().device();
  const auto input = run.input.detach().to(
      device,
      /*non_blocking=*/false,
      /*copy=*/true);
  input.requires_grad_();
  const auto cotangent = run.cotangent.to(device);
  PythonAdamW optimizer(run.adamw, parameters.values());

  StateDict result;
  at::manual_seed(run.seed);
  for (int64_t step = 0; step < std::max<int64_t>(run.adamw.steps, 1); ++step) {
    for (const auto& parameter : parameters) {
      parameter.value().mutable_grad() = torch::Tensor();
    }
    input.mutable_grad() = torch::Tensor();
    const auto output = trainable.forward(input);
    output.backward(cotangent);
    if (step == 0) {
      result.insert("output", output.detach());
      result.insert(gradient_name("input"), input.grad().clone());
      for (const auto& parameter : parameters) {
        const auto gradient = parameter.value().grad();
        if (gradient.defined()) {
          result.insert(gradient_name(parameter.key()), gradient.clone());
        }
      }
    }
    if (run.adamw.steps > 0) {
      optimizer.step();
    }
  }
  if (run.adamw.steps > 0) {
    for (const auto& parameter : parameters) {
      result.insert(
          trained_name(parameter.key()), parameter.value().detach().clone());
    }
  }
  return result;
}

} // namespace torch_attention::tools
