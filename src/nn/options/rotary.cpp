#include <torch_attention/nn/options/rotary.h>

#include <ostream>

namespace torch_attention {

std::ostream& operator<<(std::ostream& stream, RotaryPairing pairing) {
  switch (pairing) {
    case RotaryPairing::kHalves:
      return stream << "halves";
    case RotaryPairing::kInterleaved:
      return stream << "interleaved";
  }
  return stream << "RotaryPairing(" << static_cast<int>(pairing) << ")";
}

} // namespace torch_attention
