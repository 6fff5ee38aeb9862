#include "fused_adamw.h"

#include <ATen/ops/_fused_adamw.h>
#include <torch/utils.h>

#include <memory>
#include <tuple>
#include <vector>

namespace gpt {

using torch::Tensor;
using torch::optim::AdamWOptions;
using torch::optim::AdamWParamState;

namespace {

/// The tensors that the operator takes, in the same order.
struct Update {
  void add(const Tensor& parameter, AdamWParamState& state) {
    state.step(state.step() + 1);
    parameters.push_back(parameter);
    gradients.push_back(parameter.grad());
    averages.push_back(state.exp_avg());
    squares.push_back(state.exp_avg_sq());
    steps.push_back(torch::full(
        {},
        static_cast<double>(state.step()),
        torch::TensorOptions(torch::kFloat).device(parameter.device())));
  }

  void run(const AdamWOptions& options) {
    TORCH_CHECK(!options.amsgrad(), "FusedAdamW: expected amsgrad(false)");
    at::_fused_adamw_(
        parameters,
        gradients,
        averages,
        squares,
        /*max_exp_avg_sqs=*/{},
        steps,
        options.lr(),
        std::get<0>(options.betas()),
        std::get<1>(options.betas()),
        options.weight_decay(),
        options.eps(),
        /*amsgrad=*/false,
        /*maximize=*/false);
  }

  std::vector<Tensor> parameters;
  std::vector<Tensor> gradients;
  std::vector<Tensor> averages;
  std::vector<Tensor> squares;
  std::vector<Tensor> steps;
};

} // namespace

Tensor FusedAdamW::step(LossClosure closure) {
  Tensor loss;
  if (closure) {
    const torch::AutoGradMode with_gradients(true);
    loss = closure();
  }
  const torch::NoGradGuard no_gradients;
  for (auto& group : param_groups_) {
    Update update;
    for (const auto& parameter : group.params()) {
      if (!parameter.grad().defined()) {
        continue;
      }
      auto& state = state_[parameter.unsafeGetTensorImpl()];
      if (!state) {
        auto first = std::make_unique<AdamWParamState>();
        first->exp_avg(torch::zeros_like(parameter));
        first->exp_avg_sq(torch::zeros_like(parameter));
        state = std::move(first);
      }
      update.add(parameter, static_cast<AdamWParamState&>(*state));
    }
    if (!update.parameters.empty()) {
      update.run(static_cast<const AdamWOptions&>(group.options()));
    }
  }
  return loss;
}

} // namespace gpt
