#pragma once

#include <torch_attention/nn/options/attention.h>

#include <string>

namespace torch_attention::weights::pretrained {

/// Describes options, for example "4 heads of 6 (2 of keys), causal, rotary, no
/// bias".
std::string words_of(const MultiHeadAttentionOptions& options, bool is_cross);

/// Returns C++ code that makes the options, with one option per line.
std::string code_of(const MultiHeadAttentionOptions& options);

} // namespace torch_attention::weights::pretrained
