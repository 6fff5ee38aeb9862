#pragma once

namespace torch_attention::tools {

/// The text of page.html, which the build takes into a source.
extern const char* const kPage;

} // namespace torch_attention::tools
