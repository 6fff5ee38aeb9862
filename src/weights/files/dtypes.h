#pragma once

#include <torch/types.h>

#include <optional>
#include <string>
#include <string_view>

namespace torch_attention::weights::files {

/// Returns the dtype that Python names "torch.float32"; none for other texts.
std::optional<torch::ScalarType> dtype_from_python(std::string_view name);

/// Returns the dtype of "torch.FloatStorage", the class name by which
/// `torch.save` and TorchScript name a storage.
std::optional<torch::ScalarType> dtype_from_storage(std::string_view name);

/// Returns the dtype that safetensors names "F32".
std::optional<torch::ScalarType> dtype_from_safetensors(std::string_view name);

/// Returns safetensors' name of a dtype; none if the format does not have it.
std::optional<std::string_view> safetensors_dtype(torch::ScalarType dtype);

/// Returns Python's name without "torch.": "float32".
std::string_view python_dtype(torch::ScalarType dtype);

/// Returns the dtype of the number that `torch.export` writes; none for others.
std::optional<torch::ScalarType> dtype_from_export(int64_t number);

} // namespace torch_attention::weights::files
