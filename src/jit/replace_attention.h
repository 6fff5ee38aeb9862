#pragma once

#include <jit/find_attention.h>

#include <optional>
#include <string>

namespace torch_attention::graphs {

/// Lets our operator compute what was found. Returns what it was taken for. The
/// old operators stay where they are, without a reader.
std::string replace_attention(const AttentionNodes& found);

/// Lets ours compute a `aten::scaled_dot_product_attention`.
std::string replace_sdpa_node(
    const torch::jit::Module& module,
    torch::jit::Node* node);

} // namespace torch_attention::graphs
