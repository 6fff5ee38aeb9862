#include <torch_attention/nn/options/output_gate.h>

#include <ostream>

namespace torch_attention {

std::ostream& operator<<(std::ostream& stream, GateScope scope) {
  switch (scope) {
    case GateScope::kElement:
      return stream << "element";
    case GateScope::kHead:
      return stream << "head";
  }
  return stream << "GateScope(" << static_cast<int>(scope) << ")";
}

std::ostream& operator<<(std::ostream& stream, GateFunction function) {
  switch (function) {
    case GateFunction::kSigmoid:
      return stream << "sigmoid";
    case GateFunction::kSoftplus:
      return stream << "softplus";
  }
  return stream << "GateFunction(" << static_cast<int>(function) << ")";
}

OutputGateOptions::OutputGateOptions(GateScope scope) : scope_(scope) {}

} // namespace torch_attention
