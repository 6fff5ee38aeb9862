#pragma once

#include <c10/core/ScalarType.h>

#include <torch_attention/export.h>

#include <string>

namespace torch_attention {

/// Returns Python's name of a dtype: "float32" for `torch.float32`. A dtype
/// that Python has under no name gets LibTorch's own.
TORCH_ATTENTION_API std::string dtype_name(c10::ScalarType dtype);

/// Returns the dtype of Python's name, "bfloat16" for example.
///
/// Throws c10::Error that says what was asked if there is none.
///
/// Example:
/// ```
/// attention->to(select_dtype("bfloat16"));
/// ```
TORCH_ATTENTION_API c10::ScalarType select_dtype(const std::string& name);

} // namespace torch_attention
