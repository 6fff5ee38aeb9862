#pragma once

#include <string>

namespace torch_attention::weights {

/// Returns the file `name` in `path` if that is a folder; else `path` itself.
std::string file_in(const std::string& path, const std::string& name);

/// Returns the file of weights that `path` means: `path` itself or, for a
/// folder, the file of `save_pretrained` in it, or its only one. Throws
/// c10::Error if the folder has none, or several that could be meant.
std::string find_weight_file(const std::string& path);

} // namespace torch_attention::weights
