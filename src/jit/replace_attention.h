#pragma once

#include <jit/find_attention.h>

#include <string>

namespace torch_attention::graphs {

/// Lets our operator compute what was found, where it gives the same numbers:
/// shapes, dtypes and masks are checked at each call, and the old operators
/// compute all else. Returns what it was taken for. The old nodes stay where
/// they are, without a reader.
std::string replace_attention(const AttentionNodes& found);

/// Lets our operator compute an `aten::scaled_dot_product_attention`, as above.
std::string replace_sdpa_node(torch::jit::Node* node);

} // namespace torch_attention::graphs
