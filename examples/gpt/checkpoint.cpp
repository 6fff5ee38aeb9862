#include "checkpoint.h"

#include <ATen/CPUGeneratorImpl.h>
#include <torch/utils.h>

#include <torch_attention/weights/read.h>
#include <torch_attention/weights/write.h>

#include <memory>
#include <mutex>

namespace gpt {

using torch::Tensor;
using torch::optim::AdamW;
using torch::optim::AdamWParamState;

namespace {

Tensor tensor_of(const std::vector<double>& values) {
  return torch::tensor(values, torch::kDouble);
}

} // namespace

void save_checkpoint(
    const std::string& path,
    torch_attention::models::Gpt2Impl& model,
    AdamW& optimizer,
    const std::vector<double>& losses,
    const std::vector<double>& settings) {
  torch::OrderedDict<std::string, Tensor> tensors;
  tensors.insert("settings", tensor_of(settings));
  tensors.insert("losses", tensor_of(losses));
  auto generator = at::detail::getDefaultCPUGenerator();
  {
    const std::lock_guard<std::mutex> lock(generator.mutex());
    tensors.insert("generator", generator.get_state());
  }
  for (const auto& item : model.named_parameters()) {
    const auto& parameter = item.value();
    const auto& state = static_cast<AdamWParamState&>(
        *optimizer.state().at(parameter.unsafeGetTensorImpl()));
    tensors.insert("model." + item.key(), parameter.detach());
    tensors.insert("exp_avg." + item.key(), state.exp_avg());
    tensors.insert("exp_avg_sq." + item.key(), state.exp_avg_sq());
  }
  torch_attention::write_weights(tensors, path);
}

std::vector<double> load_checkpoint(
    const std::string& path,
    torch_attention::models::Gpt2Impl& model,
    AdamW& optimizer,
    const std::vector<double>& settings) {
  const torch::NoGradGuard no_gradients;
  const auto tensors = torch_attention::read_weights(path);
  const auto get = [&](const std::string& name) {
    const auto* found = tensors.find(name);
    TORCH_CHECK(found, path, ": expected a tensor ", name);
    return *found;
  };
  TORCH_CHECK(
      get("settings").equal(tensor_of(settings)),
      path,
      ": the checkpoint is of a run with another text, model or options");
  const auto losses = get("losses");
  for (auto& item : model.named_parameters()) {
    auto& parameter = item.value();
    const auto value = get("model." + item.key());
    TORCH_CHECK(
        value.sizes() == parameter.sizes(),
        path,
        ": expected ",
        item.key(),
        " of shape ",
        parameter.sizes(),
        " but got ",
        value.sizes());
    parameter.copy_(value);
    auto state = std::make_unique<AdamWParamState>();
    state->step(losses.numel());
    state->exp_avg(get("exp_avg." + item.key()));
    state->exp_avg_sq(get("exp_avg_sq." + item.key()));
    optimizer.state()[parameter.unsafeGetTensorImpl()] = std::move(state);
  }
  auto generator = at::detail::getDefaultCPUGenerator();
  {
    const std::lock_guard<std::mutex> lock(generator.mutex());
    generator.set_state(get("generator"));
  }
  return {
      losses.data_ptr<double>(), losses.data_ptr<double>() + losses.numel()};
}

} // namespace gpt
