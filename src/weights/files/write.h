#pragma once

#include <torch_attention/weights/write.h>

#include <weights/state_dict.h>

#include <string>

namespace torch_attention::weights::files {

/// Returns the text as JSON writes it, between quotes. Throws c10::Error if it
/// is not UTF-8: Python reads nothing else.
std::string json_text(const std::string& text);

/// Throws c10::Error, which names the tensor, unless a strided tensor holds all
/// of its values: sparse, quantized, without values ...
void check_writable(const std::string& name, const torch::Tensor& tensor);

/// Returns the dtype in which a tensor is written.
torch::ScalarType written_dtype(
    const torch::Tensor& tensor,
    const WriteOptions& options);

/// Returns the elements of a tensor as they are written: in order, on the CPU.
torch::Tensor values_to_write(
    const torch::Tensor& tensor,
    const WriteOptions& options);

/// Writes a safetensors file with a CRC-32 of each tensor in `__metadata__`. On
/// c10::Error the old file stays as it was.
void write_safetensors(
    const StateDict& tensors,
    const std::string& path,
    const WriteOptions& options = {});

/// Writes a zip file as Python's `torch.save(OrderedDict(...), path)` does. On
/// c10::Error the old file stays as it was.
void write_torch_archive(
    const StateDict& tensors,
    const std::string& path,
    const WriteOptions& options = {});

/// Writes the format that the options or the extension of `path` name.
void write_weight_file(
    const StateDict& tensors,
    const std::string& path,
    const WriteOptions& options = {});

} // namespace torch_attention::weights::files
