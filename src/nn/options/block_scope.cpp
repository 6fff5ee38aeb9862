#include <torch_attention/nn/options/block_scope.h>

#include <ostream>

namespace torch_attention {

std::ostream& operator<<(std::ostream& stream, BlockScope scope) {
  switch (scope) {
    case BlockScope::kNone:
      return stream << "none";
    case BlockScope::kCausal:
      return stream << "causal";
    case BlockScope::kWindow:
      return stream << "window";
  }
  return stream << static_cast<int>(scope);
}

} // namespace torch_attention
