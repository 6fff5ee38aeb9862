#pragma once

#include <weights/files/stored_values.h>
#include <weights/layouts/rules.h>

#include <torch/nn/module.h>

#include <string>
#include <unordered_set>

namespace torch_attention::weights {

/// Returns whether a key is that of a mask, as Python's attention classes name
/// it.
bool is_mask_key(const std::string& key);

/// Returns whether `tensor` is the causal mask that Python's attention classes
/// register.
bool is_causal_mask(const torch::Tensor& tensor);

/// Returns whether a file's masks, a single one or one per head, are causal.
/// `stored` has those whose values are computed.
bool are_causal_masks(
    const layouts::Source& source,
    const files::StoredTensors& stored);

/// Returns the names of the causal masks among the buffers of `module`.
std::unordered_set<std::string> causal_masks(const torch::nn::Module& module);

} // namespace torch_attention::weights
