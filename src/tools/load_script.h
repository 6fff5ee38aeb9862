#pragma once

#include <torch/csrc/jit/api/module.h>

#include <optional>
#include <string>

namespace torch_attention::tools {

/// Returns the model of a TorchScript archive, on `device` or on the devices
/// that it was saved from. Verifies all checksums first, which
/// `torch::jit::load` does not. Throws c10::Error, which names the format and
/// ends with `hint`, for another kind of file.
torch::jit::Module load_script(
    const std::string& path,
    std::optional<c10::Device> device,
    const std::string& hint = {});

} // namespace torch_attention::tools
