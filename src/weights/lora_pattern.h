#pragma once

#include <string_view>

namespace torch_attention::weights {

/// Returns whether a regular expression matches the whole path of a module, as
/// Python's `re.fullmatch` does. Literals, `.`, `\d`, `\w`, `\b`, classes in
/// brackets, groups, alternatives, `*`, `+`, `?`, `{m,n}`, `^`, `$` and looks
/// ahead are known. Throws c10::Error, which names the pattern, for any other
/// expression, and for one that takes too long.
bool matches_pattern(std::string_view pattern, std::string_view path);

} // namespace torch_attention::weights
