#pragma once

#include <torch/types.h>

#include <optional>
#include <string>
#include <string_view>

namespace torch_attention::weights::files {

/// Returns the dtype of a name such as "torch.float32"; none for other texts.
std::optional<torch::ScalarType> dtype_from_python(std::string_view name);

/// Returns the dtype of the name of a storage class, such as
/// "torch.FloatStorage", which `torch.save` and TorchScript write.
std::optional<torch::ScalarType> dtype_from_storage(std::string_view name);

/// Returns the dtype of a safetensors name such as "F32".
std::optional<torch::ScalarType> dtype_from_safetensors(std::string_view name);

/// Returns safetensors' name of a dtype; none if the format does not have it.
std::optional<std::string_view> safetensors_dtype(torch::ScalarType dtype);

/// Returns the name in Python without "torch.", such as "float32".
std::string_view python_dtype(torch::ScalarType dtype);

/// Returns the dtype of a number in `torch.export`; none for other numbers.
std::optional<torch::ScalarType> dtype_from_export(int64_t number);

} // namespace torch_attention::weights::files
