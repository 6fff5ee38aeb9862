#pragma once

#include <torch_attention/nn/options/attention.h>

#include <string>

namespace torch_attention::weights::pretrained {

/// "4 heads of 6 (2 of keys), causal, rotary, no bias", for example.
std::string words_of(const MultiHeadAttentionOptions& options, bool is_cross);

/// C++ that makes the same options, each call of an option on its own line.
std::string code_of(const MultiHeadAttentionOptions& options);

} // namespace torch_attention::weights::pretrained
