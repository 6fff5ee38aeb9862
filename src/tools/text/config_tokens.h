#pragma once

#include <tools/text/tokenizer_file.h>
#include <tools/text/tokenizer_options.h>

#include <string>
#include <vector>

namespace torch_attention::tools {

/// Throws c10::Error, which names the field, if the files next to a
/// tokenizer.json name tokens that transformers would add to its own, or would
/// find in other places.
void check_config_tokens(
    const TokenizerOptions& options,
    const TokenizerFile& file);

/// Returns the texts of tokens that the class of transformers adds to those of
/// tokenizer.json, since no file names others.
std::vector<std::string> default_texts(const TokenizerOptions& options);

} // namespace torch_attention::tools
