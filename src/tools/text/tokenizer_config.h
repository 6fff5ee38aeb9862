#pragma once

#include <tools/text/tokenizer_file.h>

#include <json_tree.h>

#include <string>

namespace torch_attention::tools {

/// Throws c10::Error, which names the field, if the `tokenizer_config.json` or
/// `special_tokens_map.json` next to a tokenizer.json makes transformers give
/// other tokens than the tokenizer.json alone. `path` is that of the
/// tokenizer.json, `tokenizer` its content, and `file` what was read of it.
void check_tokenizer_config(
    const std::string& path,
    const Json& tokenizer,
    const TokenizerFile& file);

} // namespace torch_attention::tools
