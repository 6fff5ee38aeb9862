#include <torch_attention/nn/options/rotary.h>

#include <ostream>
#include <utility>

namespace torch_attention {

RotaryTables::RotaryTables(torch::Tensor cos, torch::Tensor sin)
    : cos_(std::move(cos)), sin_(std::move(sin)) {}

std::ostream& operator<<(std::ostream& stream, RotaryPairing pairing) {
  switch (pairing) {
    case RotaryPairing::kHalves:
      return stream << "halves";
    case RotaryPairing::kInterleaved:
      return stream << "interleaved";
    case RotaryPairing::kHalvesOfHalves:
      return stream << "halves of halves";
  }
  return stream << "RotaryPairing(" << static_cast<int>(pairing) << ")";
}

std::ostream& operator<<(std::ostream& stream, RotaryScaling scaling) {
  switch (scaling) {
    case RotaryScaling::kLinear:
      return stream << "linear";
    case RotaryScaling::kLlama3:
      return stream << "llama3";
    case RotaryScaling::kYarn:
      return stream << "yarn";
    case RotaryScaling::kDynamic:
      return stream << "dynamic";
    case RotaryScaling::kLongRope:
      return stream << "longrope";
  }
  return stream << "RotaryScaling(" << static_cast<int>(scaling) << ")";
}

} // namespace torch_attention
