#pragma once

#include <torch/nn/module.h>

#include <torch_attention/distributed/group.h>
#include <torch_attention/export.h>
#include <torch_attention/weights/load.h>
#include <torch_attention/weights/save.h>

#include <string>
#include <vector>

namespace torch_attention::distributed {

/// Returns the tensors of which this process has only a part, by their keys in
/// the state dict of `module`: the parameters of modules that `tensor_parallel`
/// split.
///
/// Example:
/// ```
/// load_weights(*model, "model.safetensors",
///     LoadOptions().shards(distributed::weight_shards(*model)));
/// ```
TORCH_ATTENTION_API std::vector<WeightShard> weight_shards(
    const torch::nn::Module& module);

/// Loads a split model from a file of the whole model, in any format and
/// layout, as `torch_attention::load_weights` does. Each process reads its
/// parts and verifies its share of the checksums. Either all processes load or
/// none changes.
///
/// Throws c10::Error in all processes if one of them cannot load, with its
/// error message; also if a process ends.
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

/// Saves a split model into files of the whole model, as
/// `torch_attention::save_weights` does. Every process has to call it. In
/// addition to its own parts, each process holds one whole tensor at a time and
/// all tensors that it writes. Files by extension:
///
///   model.safetensors             one file, which process 0 writes as one
///                                 process would
///   model.safetensors.index.json  an index and one file per process next to
///                                 it, in a folder that all processes share;
///                                 the files have about equal sizes.
///                                 `load_weights` and Python's
///                                 `from_pretrained` read them. Takes no
///                                 `layout`.
///
/// The index is replaced after all files are complete; then files that only the
/// old index named are removed. After a crash either the old or the new files
/// are complete. Files that no index names, such as "model-2-00001-of-00002",
/// may remain and can be deleted. If the folder also has a model.safetensors,
/// that file is loaded from it.
///
/// Throws c10::Error in all processes if a file cannot be written, which leaves
/// the old files in use, or if a process ends.
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
