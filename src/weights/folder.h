#pragma once

#include <string>

namespace torch_attention::weights {

/// Returns the file of weights that `path` means: itself, or for a folder that
/// of `save_pretrained` in it, or the only one. Throws c10::Error if a folder
/// has none, or several that could be meant.
std::string find_weight_file(const std::string& path);

} // namespace torch_attention::weights
