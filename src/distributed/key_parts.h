#pragma once

#include <torch_attention/distributed/group.h>
#include <torch_attention/nn/options/attention.h>

#include <torch/types.h>

namespace torch_attention::distributed {

/// Returns the attention of query (B, H, T, D), which all processes have, to
/// the keys (B, G, n, D) and values (B, G, n, E) of all, of which each has its
/// part of another length: (B, H, T, E), the same in all. In `options`, whose
/// sinks are beside all keys, `key_lengths`, `mask` and `bias` are for the own
/// keys; rules that go by positions are not read. On the CPU; autograd records
/// nothing.
torch::Tensor attention_of_key_parts(
    const torch::Tensor& query,
    const torch::Tensor& key,
    const torch::Tensor& value,
    const Group& group,
    const functional::ScaledDotProductAttentionFuncOptions& options);

} // namespace torch_attention::distributed
