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

/// Returns the instruction set that the kernels for CPUs use: "portable",
/// "AVX2", "AVX-512", "AVX-512 BF16" or "AMX BF16"; on ARM64 "NEON" or "NEON
/// BF16". It is the fastest that this machine has; ATEN_CPU_CAPABILITY and
/// ONEDNN_MAX_CPU_ISA in the environment limit it, as they limit LibTorch.
///
/// Example:
/// ```
/// std::cout << cpu_instruction_set() << '\n'; // AVX-512
/// ```
TORCH_ATTENTION_API std::string cpu_instruction_set();

} // namespace torch_attention
