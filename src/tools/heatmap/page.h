#pragma once

namespace torch_attention::tools {

/// The page without data, which the build takes from the folder page.
extern const char* const kPage;

} // namespace torch_attention::tools
