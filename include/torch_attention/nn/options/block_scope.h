#pragma once

#include <torch_attention/export.h>

#include <iosfwd>

namespace torch_attention {

/// The rules that tokens of one block of `ForwardOptions().visible_blocks` do
/// not have among each other.
enum class BlockScope {
  /// None: the module does not read the blocks, so that all layers of a model
  /// may get them, as those of Gemma 4 that see all tokens before.
  kNone,
  /// `causal`; windows hold, as in Gemma 3.
  kCausal,
  /// `causal` and windows, as in PaliGemma 2.
  kWindow,
};

TORCH_ATTENTION_API std::ostream& operator<<(
    std::ostream& stream,
    BlockScope scope);

} // namespace torch_attention
