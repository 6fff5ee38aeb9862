#pragma once

#include <optional>
#include <string>

// Parsing of the arguments of verbs.

namespace torch_attention::weights::pretrained {

/// Throws c10::Error for an argument that the verb does not take.
[[noreturn]] void throw_unknown(const char* verb, const std::string& argument);

/// Returns the rest of an argument after a word such as "eps in "; none for
/// other arguments.
std::optional<std::string> text_after(
    const std::string& argument,
    const std::string& word);

/// Parses a number with a decimal point, independent of the locale.
double number_of(const std::string& text);

/// Returns the number in an argument after a word such as "eps ".
std::optional<double> number_after(
    const std::string& argument,
    const std::string& word);

} // namespace torch_attention::weights::pretrained
