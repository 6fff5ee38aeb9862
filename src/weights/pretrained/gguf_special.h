#pragma once

#include <weights/files/gguf_header.h>

#include <cstdint>
#include <string_view>
#include <vector>

namespace torch_attention::weights::pretrained {

/// Returns whether llama.cpp takes a token for a control token by its text
/// alone: converters wrote some of them as normal tokens.
bool is_control_text(std::string_view text);

/// Returns the tokens at whose texts llama.cpp ends a generation, in order;
/// none without "tokenizer.ggml.tokens". The tokens that fill a text or name a
/// file in code are none of them.
std::vector<int64_t> tokens_that_end(const files::GgufHeader& header);

} // namespace torch_attention::weights::pretrained
