#include <torch_attention/nn/options/relative_attention.h>

#include <ostream>

namespace torch_attention {

RelativeAttentionOptions::RelativeAttentionOptions(
    int64_t d_in,
    int64_t d_out,
    int64_t num_heads)
    : d_in_(d_in), d_out_(d_out), num_heads_(num_heads) {}

std::ostream& operator<<(std::ostream& stream, RelativeKind kind) {
  switch (kind) {
    case RelativeKind::kLearned:
      return stream << "learned";
    case RelativeKind::kSinusoids:
      return stream << "sinusoids";
    case RelativeKind::kRowsAndColumns:
      return stream << "rows and columns";
    case RelativeKind::kDisentangled:
      return stream << "disentangled";
  }
  return stream << "RelativeKind(" << static_cast<int>(kind) << ")";
}

std::ostream& operator<<(std::ostream& stream, SinusoidOrder order) {
  return stream
      << (order == SinusoidOrder::kInterleaved ? "interleaved" : "halves");
}

} // namespace torch_attention
