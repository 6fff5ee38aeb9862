#pragma once

#include <string>

namespace torch_attention {

/// Throws c10::Error unless `path` leads to a regular file. Opening a named
/// pipe would wait for its writer, and a device may have no end.
void check_regular_file(const std::string& path);

} // namespace torch_attention
