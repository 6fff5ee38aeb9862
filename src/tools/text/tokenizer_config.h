#pragma once

#include <tools/text/tokenizer_file.h>

#include <json_tree.h>

#include <string>

namespace torch_attention::tools {

/// Reads the `tokenizer_config.json` and the older files next to a
/// tokenizer.json into `file`, which has what was read of it. `path` is that of
/// the tokenizer.json, `tokenizer` its content. Throws c10::Error, which names
/// the field, if they or config.json make transformers give other tokens than
/// the tokenizer.json alone.
void read_tokenizer_config(
    const std::string& path,
    const Json& tokenizer,
    TokenizerFile& file);

} // namespace torch_attention::tools
