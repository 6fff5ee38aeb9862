#pragma once

#include <tools/heatmap/attention_map.h>

#include <string>

namespace torch_attention::tools {

/// A page without anything from outside it, in which one picks layer, heads and
/// token. Weights have 12 bits: 0 to 4095 for 0 to 1.
/// Throws c10::Error as `check_map` does.
std::string html_of(const AttentionMap& map);

/// A picture of all heads of all layers: a panel each, rows are queries.
/// Throws c10::Error as `check_map` does.
std::string svg_of(const AttentionMap& map);

} // namespace torch_attention::tools
