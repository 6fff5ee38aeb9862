#pragma once

#include <torch_attention/nn/options/attention.h>

#include <iosfwd>

/// Checks and prints the options of `MultiHeadAttention`.
namespace torch_attention::detail {

/// Throws c10::Error if options are wrong or contradict each other.
void check_options(const MultiHeadAttentionOptions& options);

/// Prints the options that differ from their defaults.
void print_options(
    std::ostream& stream,
    const MultiHeadAttentionOptions& options);

} // namespace torch_attention::detail
