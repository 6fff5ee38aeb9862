#include <tools/training_run.h>

#include <ATen/Context.h>
#include <torch/optim/adamw.h>

#include <algorithm>

namespace torch_attention::tools {

std::string gradient_name(const std::string& tensor) {
  return "gradient of " + tensor;
}

std::string trained_name(const std::string& parameter) {
  return "trained " + parameter;
}

StateDict run(torch::nn::AnyModule module, const TrainingRun& run) {
  auto tree = module.ptr();
  tree->train(run.training);
  const auto parameters = tree->named_parameters();
  const auto device = parameters.begin()->value().device();
  const auto input = run.input.detach().to(
      device,
      /*non_blocking=*/false,
      /*copy=*/true);
  input.requires_grad_();
  const auto cotangent = run.cotangent.to(device);
  torch::optim::AdamW optimizer(
      tree->parameters(),
      torch::optim::AdamWOptions(run.adamw.lr)
          .betas({run.adamw.beta1, run.adamw.beta2})
          .eps(run.adamw.eps)
          .weight_decay(run.adamw.weight_decay));

  StateDict result;
  at::manual_seed(run.seed);
  for (int64_t step = 0; step < std::max<int64_t>(run.adamw.steps, 1); ++step) {
    optimizer.zero_grad();
    const auto output = module.forward<torch::Tensor>(input);
    output.backward(cotangent);
    if (step == 0) {
      result.insert("output", output.detach());
      result.insert(gradient_name("input"), input.grad().clone());
      for (const auto& parameter : parameters) {
        result.insert(
            gradient_name(parameter.key()), parameter.value().grad().clone());
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
