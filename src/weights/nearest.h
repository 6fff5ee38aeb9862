#pragma once

#include <optional>
#include <string>
#include <vector>

namespace torch_attention {

/// The candidate whose path differs least from that of `text`, in single
/// characters added, left out or replaced; none if all differ by more than a
/// third of it. What follows the last dot has to be the same.
std::optional<std::string> nearest_text(
    const std::string& text,
    const std::vector<std::string>& candidates);

} // namespace torch_attention
