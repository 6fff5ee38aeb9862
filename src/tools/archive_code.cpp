#include <tools/archive_code.h>

#include <c10/util/Exception.h>

#include <check.h>
#include <tools/comparison.h>
#include <tools/load_script.h>

#include <algorithm>
#include <exception>
#include <utility>

namespace torch_attention::tools {

namespace {

StateDict run_in_double(torch::jit::Module module, TrainingRun run) {
  run.input = run.input.to(torch::kDouble);
  run.cotangent = run.cotangent.to(torch::kDouble);
  // Module::to would also convert a bool mask to numbers.
  for (const auto& item : tensors_of(module)) {
    if (item.value().is_floating_point()) {
      item.value().set_data(item.value().to(torch::kDouble));
    }
  }
  return run_code(std::move(module), run);
}

} // namespace

torch::jit::Module load_code(
    const std::string& archive,
    const std::string& prefix) {
  auto module = load_script(archive, c10::kCPU);
  size_t begin = 0;
  while (begin < prefix.size()) {
    const auto end = std::min(prefix.find('.', begin), prefix.size());
    const auto name = prefix.substr(begin, end - begin);
    TORCH_ATTENTION_CHECK(
        module.hasattr(name) && module.attr(name).isModule(),
        "\"{}\" has no module \"{}\"",
        archive,
        prefix);
    module = module.attr(name).toModule();
    begin = end + 1;
  }
  return module;
}

StateDict tensors_of(const torch::jit::Module& module) {
  StateDict tensors;
  for (const auto& parameter : module.named_parameters()) {
    tensors.insert(parameter.name, parameter.value);
  }
  for (const auto& buffer : module.named_buffers()) {
    tensors.insert(buffer.name, buffer.value);
  }
  return tensors;
}

StateDict run_code(torch::jit::Module module, const TrainingRun& run) {
  module.train(run.training);
  Trainable trainable;
  for (const auto& parameter : module.named_parameters()) {
    trainable.parameters.insert(
        parameter.name, parameter.value.requires_grad_());
  }
  trainable.forward = [&](const torch::Tensor& x) {
    return module.forward({x}).toTensor();
  };
  return tools::run(trainable, run);
}

std::map<std::string, double> measure_rounding(
    const std::string& archive,
    const std::string& prefix,
    const TrainingRun& run) {
  std::map<std::string, double> rounding;
  try {
    const auto exact = run_in_double(load_code(archive, prefix), run);
    for (const auto& item : run_code(load_code(archive, prefix), run)) {
      const auto* found = exact.find(item.key());
      if (found != nullptr) {
        rounding[item.key()] =
            largest_of(item.value().to(torch::kDouble) - *found);
      }
    }
  } catch (const std::exception&) {
    rounding.clear();
  }
  return rounding;
}

} // namespace torch_attention::tools
