#pragma once

#include <weights/state_dict.h>

#include <string>

namespace torch_attention {

/// Parameters and buffers of a TorchScript archive, which is known to be a zip
/// file. Throws c10::Error that says what is wrong with it.
StateDict read_torchscript(const std::string& path);

} // namespace torch_attention
