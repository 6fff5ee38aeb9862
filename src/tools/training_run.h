#pragma once

#include <torch/nn/modules/container/any.h>
#include <torch/types.h>

#include <tools/state_dict.h>

#include <cstdint>
#include <functional>
#include <string>

namespace torch_attention::tools {

/// Options of AdamW (Loshchilov and Hutter 2019).
struct AdamW {
  double lr = 1e-2;
  double beta1 = 0.9;
  double beta2 = 0.999;
  double eps = 1e-3;
  double weight_decay = 1e-2;
  int64_t steps = 0;
};

/// A function of one tensor, and the parameters to train.
struct Trainable {
  std::function<torch::Tensor(const torch::Tensor&)> forward;
  StateDict parameters;
};

/// The input and settings of a run that two implementations have to repeat.
struct TrainingRun {
  torch::Tensor input;
  /// Gradient of the loss with respect to the output.
  torch::Tensor cotangent;
  bool training = false;
  /// The seed, set once before the first step.
  uint64_t seed = 0;
  AdamW adamw;
};

/// Return the names of a gradient and of a trained parameter among the results
/// of a run.
std::string gradient_name(const std::string& tensor);
std::string trained_name(const std::string& parameter);

/// Returns the parameter of a `trained_name`; "" for any other name.
std::string parameter_of_trained(const std::string& name);

/// Runs forward and backward passes and steps of AdamW, on the device of the
/// parameters. Returns the output and the gradients of input and parameters in
/// the first step, and the parameters after all steps. Unused parameters have
/// no gradient.
StateDict run(const Trainable& trainable, const TrainingRun& run);

} // namespace torch_attention::tools
