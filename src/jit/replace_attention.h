#pragma once

#include <jit/find_attention.h>

#include <string>

namespace torch_attention::graphs {

/// Lets our operator compute an attention if it gives the same numbers: shapes,
/// dtypes and masks are checked in each call, and the original operators
/// compute everything else. Returns a description of the attention. The
/// original nodes remain in the graph, without readers.
std::string replace_attention(const AttentionNodes& found);

/// Lets our operator compute an `aten::scaled_dot_product_attention` if it
/// gives the same numbers, which is checked in each call. Returns a
/// description.
std::string replace_sdpa_node(torch::jit::Node* node);

} // namespace torch_attention::graphs
