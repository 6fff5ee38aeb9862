#pragma once

#include <torch/csrc/jit/api/module.h>

#include <optional>
#include <string>

namespace torch_attention::tools {

/// Returns the model of a TorchScript archive, on `device` or those that it was
/// saved from. All bytes are compared with their checksums first, which
/// `torch::jit::load` does not. Throws c10::Error that names the format of
/// another file, with `hint` at its end.
torch::jit::Module load_script(
    const std::string& path,
    std::optional<c10::Device> device,
    const std::string& hint = {});

} // namespace torch_attention::tools
