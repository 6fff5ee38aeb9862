#pragma once

#include <torch_attention/export.h>

#include <iosfwd>

namespace torch_attention {

/// Selects which rules do not apply between the tokens of one block of
/// `ForwardOptions().visible_blocks`.
enum class BlockScope {
  /// None: the module ignores the blocks, so that a model can pass them to all
  /// of its layers. Gemma 4's full-attention layers.
  kNone,
  /// `causal`; windows still apply, as in Gemma 3.
  kCausal,
  /// `causal` and windows, as in PaliGemma 2.
  kWindow,
};

/// Prints `none`, `causal` or `window`.
TORCH_ATTENTION_API std::ostream& operator<<(
    std::ostream& stream,
    BlockScope scope);

} // namespace torch_attention
