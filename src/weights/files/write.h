#pragma once

#include <weights/state_dict.h>

#include <functional>
#include <map>
#include <string>

namespace torch_attention {

/// Called after each tensor with its number of bytes.
using Progress = std::function<void(uint64_t bytes)>;

/// Writes a safetensors file with a CRC-32 of each tensor in `__metadata__`.
/// Throws c10::Error, the old file being as it was.
void write_safetensors(
    const StateDict& tensors,
    const std::string& path,
    const Progress& progress = {});

/// Writes a zip file as Python's `torch.save(OrderedDict(...), path)` does.
/// Throws c10::Error, the old file being as it was.
void write_torch_archive(
    const StateDict& tensors,
    const std::string& path,
    const Progress& progress = {});

/// The elements of a tensor as they are written: in order, on the CPU.
torch::Tensor values_to_write(const torch::Tensor& tensor);

/// Writes by `path`'s extension: `.safetensors`, or `.pt`, `.pth`, `.bin`.
void write_weight_file(
    const StateDict& tensors,
    const std::string& path,
    const Progress& progress = {});

} // namespace torch_attention
