#include <torch_attention/nn/options/relative_bias.h>

namespace torch_attention {

RelativeBiasOptions::RelativeBiasOptions(int64_t num_heads)
    : num_heads_(num_heads) {}

WindowBiasOptions::WindowBiasOptions(
    int64_t num_heads,
    int64_t height,
    int64_t width)
    : num_heads_(num_heads), height_(height), width_(width) {}

} // namespace torch_attention
