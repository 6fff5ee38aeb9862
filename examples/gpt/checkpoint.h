#pragma once

#include <torch/optim/adamw.h>

#include <torch_attention/models/gpt2.h>

#include <string>
#include <utility>
#include <vector>

namespace gpt {

/// Options of a run by name.
using Settings = std::vector<std::pair<std::string, double>>;

/// The contents of a file of `save_checkpoint`.
struct Checkpoint {
  std::string path;
  torch::OrderedDict<std::string, torch::Tensor> tensors;
  /// One for each step.
  std::vector<double> losses;

  /// Throws c10::Error if there is no setting with this name.
  double setting(const std::string& name) const;
};

/// Writes all that training needs to go on: the model, the optimizer's moments,
/// the state of the random generator, the losses, whose number is that of
/// steps, and the settings. The file is complete or not written at all, and
/// Python reads it with `torch.load(path, weights_only=True)`.
void save_checkpoint(
    const std::string& path,
    torch_attention::models::Gpt2Impl& model,
    torch::optim::AdamW& optimizer,
    const std::vector<double>& losses,
    const Settings& settings);

/// Throws c10::Error if the file cannot be read.
Checkpoint read_checkpoint(const std::string& path);

/// Throws c10::Error, which names the first of `settings` that differs from the
/// checkpoint's.
void check_settings(const Checkpoint& checkpoint, const Settings& settings);

/// Sets model, optimizer and generator. Throws c10::Error if the checkpoint
/// does not fit them.
void restore(
    const Checkpoint& checkpoint,
    torch_attention::models::Gpt2Impl& model,
    torch::optim::AdamW& optimizer);

} // namespace gpt
