#pragma once

#include <torch/types.h>

#include <optional>
#include <string>
#include <string_view>

namespace torch_attention::weights::files {

/// Returns the dtype of "torch.float32", Python's name; none for other texts.
std::optional<torch::ScalarType> dtype_from_python(std::string_view name);

/// Returns the dtype of "torch.FloatStorage", in which `torch.save` and
/// TorchScript name a storage's class.
std::optional<torch::ScalarType> dtype_from_storage(std::string_view name);

/// Returns the dtype of "F32", safetensors' name.
std::optional<torch::ScalarType> dtype_from_safetensors(std::string_view name);

/// Safetensors' name of a dtype; none if the format has not got it.
std::optional<std::string_view> safetensors_dtype(torch::ScalarType dtype);

/// "float32"; Python's name without "torch.".
std::string_view python_dtype(torch::ScalarType dtype);

/// Returns the dtype of a number as `torch.export` writes it; none for others.
std::optional<torch::ScalarType> dtype_from_export(int64_t number);

} // namespace torch_attention::weights::files
