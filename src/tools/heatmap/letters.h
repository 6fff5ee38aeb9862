#pragma once

#include <cstdint>
#include <functional>
#include <string_view>
#include <vector>

namespace torch_attention::tools {

/// A letter and the space after it.
constexpr int64_t kLetterWidth = 6;
/// The row that stands on the base line.
constexpr int64_t kBaseRow = 6;

/// The dots of a letter, five in a row; '#' is ink. Rows are separated by
/// spaces: seven, or nine where the letter goes below the base line.
using Letter = const char*;

/// Returns a letter for each cell of `width_of(text)`: those of ASCII, a box
/// for others.
std::vector<Letter> letters_of_text(std::string_view text);

/// Calls `draw(column, row)` for each dot of ink.
void for_each_dot(
    Letter letter,
    const std::function<void(int64_t, int64_t)>& draw);

} // namespace torch_attention::tools
