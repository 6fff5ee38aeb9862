#pragma once

#include <c10/core/Device.h>

#include <torch_attention/export.h>

#include <string>

namespace torch_attention {

/// Returns the device with this name: "cpu", "cuda", "cuda:N", or "auto", which
/// is CUDA if this machine has it and the CPU otherwise.
///
/// Throws c10::Error, which names the requested device and the available ones.
///
/// Example:
/// ```
/// attention->to(select_device("auto"));
/// ```
TORCH_ATTENTION_API c10::Device select_device(const std::string& name = "auto");

} // namespace torch_attention
