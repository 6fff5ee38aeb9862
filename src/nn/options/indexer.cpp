#include <torch_attention/nn/options/indexer.h>

namespace torch_attention {

IndexerOptions::IndexerOptions(
    int64_t num_heads,
    int64_t head_dim,
    int64_t topk)
    : num_heads_(num_heads), head_dim_(head_dim), topk_(topk) {}

} // namespace torch_attention
