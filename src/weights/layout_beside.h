#pragma once

#include <weights/layouts/find.h>

#include <string>

namespace torch_attention::weights {

/// Decides between layouts of the same keys and shapes by the `config.json`
/// beside the file at `path`, of which the part below `start` is read. Empty
/// for what comes from no file.
layouts::Decide layout_beside(
    const std::string& path,
    const std::string& start);

} // namespace torch_attention::weights
