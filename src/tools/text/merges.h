#pragma once

#include <json_tree.h>

#include <string>
#include <vector>

namespace torch_attention::tools {

/// Returns the tokens of a byte pair model that merges do not make of their own
/// letters. `path` is for messages.
///
/// ONNX Runtime GenAI gives a word that is such a token this one, as
/// "ignore_merges" asks for; Python's `tokenizers` without it do not.
std::vector<std::string> tokens_without_merges(
    const Json& model,
    const std::string& path);

} // namespace torch_attention::tools
