#include "checkpoint.h"

#include <ATen/CPUGeneratorImpl.h>
#include <torch/utils.h>

#include <torch_attention/weights/read.h>
#include <torch_attention/weights/write.h>

#include <iomanip>
#include <memory>
#include <mutex>
#include <sstream>

namespace gpt {

using torch::Tensor;
using torch::optim::AdamW;
using torch::optim::AdamWParamState;

namespace {

const std::string kSetting = "settings.";

const Tensor& tensor_of(const Checkpoint& checkpoint, const std::string& name) {
  const auto* found = checkpoint.tensors.find(name);
  TORCH_CHECK(found, checkpoint.path, ": expected a tensor ", name);
  return *found;
}

/// Returns a number without a rounding that would hide a difference.
std::string number_text(double value) {
  std::ostringstream text;
  text << std::setprecision(10) << value;
  return text.str();
}

} // namespace

void save_checkpoint(
    const std::string& path,
    torch_attention::models::Gpt2Impl& model,
    AdamW& optimizer,
    const std::vector<double>& losses,
    const Settings& settings) {
  torch::OrderedDict<std::string, Tensor> tensors;
  for (const auto& [name, value] : settings) {
    tensors.insert(kSetting + name, torch::tensor(value, torch::kDouble));
  }
  tensors.insert("losses", torch::tensor(losses, torch::kDouble));
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

double Checkpoint::setting(const std::string& name) const {
  return tensor_of(*this, kSetting + name).item<double>();
}

Checkpoint read_checkpoint(const std::string& path) {
  Checkpoint checkpoint{path, torch_attention::read_weights(path), {}};
  const auto losses = tensor_of(checkpoint, "losses").to(torch::kDouble);
  const auto* begin = losses.data_ptr<double>();
  checkpoint.losses.assign(begin, begin + losses.numel());
  return checkpoint;
}

void check_settings(const Checkpoint& checkpoint, const Settings& settings) {
  for (const auto& [name, value] : settings) {
    const auto before = checkpoint.setting(name);
    TORCH_CHECK(
        before == value,
        checkpoint.path,
        ": expected ",
        name,
        " ",
        number_text(before),
        ", as in the steps before, but got ",
        number_text(value));
  }
}

void restore(
    const Checkpoint& checkpoint,
    torch_attention::models::Gpt2Impl& model,
    AdamW& optimizer) {
  const torch::NoGradGuard no_gradients;
  const auto get = [&](const std::string& name) {
    return tensor_of(checkpoint, name);
  };
  for (auto& item : model.named_parameters()) {
    auto& parameter = item.value();
    const auto value = get("model." + item.key());
    TORCH_CHECK(
        value.sizes() == parameter.sizes(),
        checkpoint.path,
        ": expected ",
        item.key(),
        " of shape ",
        parameter.sizes(),
        " but got ",
        value.sizes());
    parameter.copy_(value);
    auto state = std::make_unique<AdamWParamState>();
    state->step(static_cast<int64_t>(checkpoint.losses.size()));
    state->exp_avg(get("exp_avg." + item.key()));
    state->exp_avg_sq(get("exp_avg_sq." + item.key()));
    optimizer.state()[parameter.unsafeGetTensorImpl()] = std::move(state);
  }
  auto generator = at::detail::getDefaultCPUGenerator();
  {
    const std::lock_guard<std::mutex> lock(generator.mutex());
    generator.set_state(get("generator"));
  }
}

} // namespace gpt
