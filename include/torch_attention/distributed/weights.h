#pragma once

#include <torch/nn/module.h>

#include <torch_attention/distributed/group.h>
#include <torch_attention/export.h>
#include <torch_attention/weights/load.h>
#include <torch_attention/weights/save.h>

#include <string>
#include <vector>

namespace torch_attention::distributed {

/// Returns the tensors of `module` of which this process has a part, by their
/// keys in the state dict: those of the modules that `tensor_parallel` split.
///
/// Example:
/// ```
/// load_weights(*model, "model.safetensors",
///     LoadOptions().shards(distributed::weight_shards(*model)));
/// ```
TORCH_ATTENTION_API std::vector<WeightShard> weight_shards(
    const torch::nn::Module& module);

/// `torch_attention::load_weights` of a model that was split: each process
/// reads its parts of the file, which has the whole, in any format and layout,
/// and checks its share of the checksums. All processes load, or none changes.
///
/// Throws c10::Error in all processes if one of them cannot load, with what is
/// wrong there; and if a process ends.
///
/// Example:
/// ```
/// distributed::tensor_parallel(*model, group);
/// distributed::load_weights(*model, "model.safetensors", group);
/// ```
TORCH_ATTENTION_API LoadReport load_weights(
    torch::nn::Module& module,
    const std::string& path,
    const Group& group,
    const LoadOptions& options = {});

/// `torch_attention::save_weights` of a model that was split: process 0 writes
/// one file of the whole, as one process would. Every process has to call it.
/// Besides its own parts it holds one whole tensor at a time, process 0 all.
///
/// Throws c10::Error in all processes if the file cannot be written, and if a
/// process ends.
///
/// Example:
/// ```
/// distributed::save_weights(*model, "model.safetensors", group);
/// ```
TORCH_ATTENTION_API void save_weights(
    const torch::nn::Module& module,
    const std::string& path,
    const Group& group,
    const SaveOptions& options = {});

} // namespace torch_attention::distributed
