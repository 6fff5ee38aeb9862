#pragma once

#include <torch_attention/weights/write.h>

#include <weights/state_dict.h>

#include <string>

namespace torch_attention::weights::files {

/// Returns the text as a JSON string, in quotes. Throws c10::Error if it is not
/// UTF-8, the only encoding that Python reads.
std::string json_text(const std::string& text);

/// Throws c10::Error, which names the tensor, unless it is a strided tensor
/// with values: not sparse, quantized, nested or on the device meta.
void check_writable(const std::string& name, const torch::Tensor& tensor);

/// Returns the dtype in which a tensor is written.
torch::ScalarType written_dtype(
    const torch::Tensor& tensor,
    const WriteOptions& options);

/// Returns the elements of a tensor as they are written: contiguous, on the
/// CPU.
torch::Tensor values_to_write(
    const torch::Tensor& tensor,
    const WriteOptions& options);

/// Writes a safetensors file with a CRC-32 of each tensor in `__metadata__`. If
/// it throws, the old file has not changed.
void write_safetensors(
    const StateDict& tensors,
    const std::string& path,
    const WriteOptions& options = {});

/// Writes a zip file like Python's `torch.save(OrderedDict(...), path)`. If it
/// throws, the old file has not changed.
void write_torch_archive(
    const StateDict& tensors,
    const std::string& path,
    const WriteOptions& options = {});

/// Writes the format chosen by the options or by the extension of `path`.
void write_weight_file(
    const StateDict& tensors,
    const std::string& path,
    const WriteOptions& options = {});

} // namespace torch_attention::weights::files
