#pragma once

#include <cstddef>
#include <string_view>

namespace torch_attention {

/// Returns the Levenshtein distance: the least number of characters to insert,
/// delete and replace.
size_t edit_distance(std::string_view a, std::string_view b);

} // namespace torch_attention
