#pragma once

#include <string>

namespace torch_attention::weights {

/// Returns the path of the file `name` in the folder `path`; if that is not a
/// folder, returns `path` itself.
std::string file_in(const std::string& path, const std::string& name);

/// Returns the weight file for `path`: `path` itself or, in a folder, the file
/// written by `save_pretrained`, or else the only weight file. Throws
/// c10::Error if there is none, or if there are several to choose from.
std::string find_weight_file(const std::string& path);

} // namespace torch_attention::weights
