#include <torch_attention/nn/options/head_norm.h>

#include <ostream>

namespace torch_attention {

std::ostream& operator<<(std::ostream& stream, HeadNormKind kind) {
  switch (kind) {
    case HeadNormKind::kRms:
      return stream << "rms";
    case HeadNormKind::kLayer:
      return stream << "layer";
  }
  return stream << "HeadNormKind(" << static_cast<int>(kind) << ")";
}

std::ostream& operator<<(std::ostream& stream, HeadNormScope scope) {
  switch (scope) {
    case HeadNormScope::kHead:
      return stream << "head";
    case HeadNormScope::kHeadWeights:
      return stream << "head_weights";
    case HeadNormScope::kAllHeads:
      return stream << "all_heads";
  }
  return stream << "HeadNormScope(" << static_cast<int>(scope) << ")";
}

HeadNormOptions::HeadNormOptions(HeadNormKind kind) : kind_(kind) {}

} // namespace torch_attention
