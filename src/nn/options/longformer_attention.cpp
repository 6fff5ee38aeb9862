#include <torch_attention/nn/options/longformer_attention.h>

namespace torch_attention {

LongformerAttentionOptions::LongformerAttentionOptions(
    int64_t d_in,
    int64_t d_out,
    int64_t num_heads)
    : d_in_(d_in), d_out_(d_out), num_heads_(num_heads) {}

} // namespace torch_attention
