#include <torch_attention/nn/options/latent_attention.h>

namespace torch_attention {

LatentAttentionOptions::LatentAttentionOptions(
    int64_t d_in,
    int64_t d_out,
    int64_t context_length,
    int64_t num_heads)
    : d_in_(d_in),
      d_out_(d_out),
      context_length_(context_length),
      num_heads_(num_heads) {}

} // namespace torch_attention
