#pragma once

#include <json_tree.h>

#include <string>

namespace torch_attention {

/// The class that takes all parts of a tokenizer from its tokenizer.json.
constexpr const char* kGenericTokenizer = "TokenizersBackend";

/// Returns the class, without "Fast", as which `AutoTokenizer` of transformers
/// 5.24 opens the tokenizer of a folder: by the `tokenizer_class` of its
/// tokenizer_config.json, whose fields are `config`, and by the `model_type`
/// and `tokenizer_class` of its config.json. Without a config.json, which
/// AutoTokenizer needs, returns the class that `config` names, or nothing.
/// `has_byte_level` is true for a tokenizer.json with a part "ByteLevel".
///
/// Throws c10::Error if `config` names Python code ("auto_map"), or another
/// file than tokenizer.json ("fast_tokenizer_files").
std::string auto_tokenizer_class(
    const std::string& folder,
    const Json& config,
    bool has_byte_level);

/// Returns whether texts that are too long lose their begin and not their end.
/// `config` are the fields of the tokenizer_config.json of the folder, and
/// `tokenizer` those of its tokenizer.json, if there are such. Throws
/// c10::Error for a `truncation_side` that transformers refuses.
bool auto_tokenizer_cuts_left(
    const std::string& folder,
    const Json& config,
    const Json& tokenizer);

} // namespace torch_attention
