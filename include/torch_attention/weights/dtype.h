#pragma once

#include <c10/core/ScalarType.h>

#include <torch_attention/export.h>

#include <string>

namespace torch_attention {

/// Returns Python's name of a dtype: "float32" for `torch.float32`. For a dtype
/// that Python does not name, returns LibTorch's own name.
TORCH_ATTENTION_API std::string dtype_name(c10::ScalarType dtype);

/// Returns the dtype with this name in Python, such as "bfloat16".
///
/// Throws c10::Error, which names the unknown dtype, if there is none.
///
/// Example:
/// ```
/// attention->to(select_dtype("bfloat16"));
/// ```
TORCH_ATTENTION_API c10::ScalarType select_dtype(const std::string& name);

} // namespace torch_attention
