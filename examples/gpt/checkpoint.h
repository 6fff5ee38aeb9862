#pragma once

#include <torch/optim/adamw.h>

#include <torch_attention/models/gpt2.h>

#include <string>
#include <vector>

namespace gpt {

/// Writes all that training needs to go on: the model, the optimizer's moments,
/// the state of the random generator, and the losses, whose number is that of
/// steps. The file is complete or not written at all, and Python reads it with
/// `torch.load(path, weights_only=True)`. `settings` is what a run that goes on
/// must share.
void save_checkpoint(
    const std::string& path,
    torch_attention::models::Gpt2Impl& model,
    torch::optim::AdamW& optimizer,
    const std::vector<double>& losses,
    const std::vector<double>& settings);

/// Sets model, optimizer and generator, and returns the losses so far.
/// Throws c10::Error if the file is of other settings or does not fit.
std::vector<double> load_checkpoint(
    const std::string& path,
    torch_attention::models::Gpt2Impl& model,
    torch::optim::AdamW& optimizer,
    const std::vector<double>& settings);

} // namespace gpt
