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

/// `torch_attention::save_weights` of a model that was split, into files of the
/// whole. Every process has to call it. Besides its own parts each holds one
/// whole tensor at a time, and all that it writes:
///
///   model.safetensors             one file, which process 0 writes as one
///                                 process would
///   model.safetensors.index.json  an index and a file of each process beside
///                                 it, in a folder that all share, of about as
///                                 many bytes each. `load_weights` reads them,
///                                 and `from_pretrained` in Python. Takes no
///                                 `layout`.
///
/// The index is replaced when all files are complete, and then those that the
/// old one alone named are removed. A crash leaves the old ones, or the new
/// ones, whole; and maybe files that no index names, "model-2-00001-of-00002"
/// or such, which can be deleted. A folder is loaded from its
/// model.safetensors, if it has one as well.
///
/// Throws c10::Error in all processes if a file cannot be written, which then
/// leaves the old ones, and if a process ends.
///
/// Example:
/// ```
/// distributed::save_weights(*model, "model.safetensors.index.json", group);
/// ```
TORCH_ATTENTION_API void save_weights(
    const torch::nn::Module& module,
    const std::string& path,
    const Group& group,
    const SaveOptions& options = {});

} // namespace torch_attention::distributed
