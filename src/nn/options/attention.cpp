#include <torch_attention/nn/options/attention.h>

#include <ostream>

namespace torch_attention {

std::ostream& operator<<(std::ostream& stream, Kernel kernel) {
  switch (kernel) {
    case Kernel::kAuto:
      return stream << "auto";
    case Kernel::kReference:
      return stream << "reference";
    case Kernel::kFused:
      return stream << "fused";
  }
  return stream << "Kernel(" << static_cast<int>(kernel) << ")";
}

SelfAttentionOptions::SelfAttentionOptions(int64_t d_in, int64_t d_out)
    : d_in_(d_in), d_out_(d_out) {}

CausalAttentionOptions::CausalAttentionOptions(
    int64_t d_in,
    int64_t d_out,
    int64_t context_length)
    : d_in_(d_in), d_out_(d_out), context_length_(context_length) {}

MultiHeadAttentionWrapperOptions::MultiHeadAttentionWrapperOptions(
    int64_t d_in,
    int64_t d_out,
    int64_t context_length,
    int64_t num_heads)
    : d_in_(d_in),
      d_out_(d_out),
      context_length_(context_length),
      num_heads_(num_heads) {}

MultiHeadAttentionOptions::MultiHeadAttentionOptions(
    int64_t d_in,
    int64_t d_out,
    int64_t context_length,
    int64_t num_heads)
    : d_in_(d_in),
      d_out_(d_out),
      context_length_(context_length),
      num_heads_(num_heads) {}

} // namespace torch_attention
