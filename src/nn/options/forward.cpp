#include <torch_attention/nn/options/forward.h>

#include <utility>

namespace torch_attention {

DecodeOptions::DecodeOptions(torch::Tensor new_lengths)
    : new_lengths_(std::move(new_lengths)) {}

} // namespace torch_attention
