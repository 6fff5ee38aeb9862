#pragma once

#include <torch_attention/models/sentence_encoder.h>

#include <json_tree.h>

#include <string>
#include <vector>

// The modules of sentence-transformers in a folder.

namespace torch_attention::models {

/// Returns whether an entry of modules.json is the module of this name of
/// sentence-transformers, as its versions 2 to 6 write it: Python code of the
/// folder may have a class of that name as well.
bool is_module(const Json& module, const std::string& name);

/// Returns the pooling of this name.
Pooling pooling_named(const Json& name, const std::string& path);

/// Returns the poolings of a module's configuration: a name, several, or flags.
std::vector<Pooling> poolings_of(const Json& config, const std::string& path);

/// Throws c10::Error for settings of the module Transformer with which tokens
/// or hidden states are not those of `bert_from_pretrained`.
void check_transformer_module(const Json& config, const std::string& path);

/// Throws c10::Error if the module Normalize takes or makes anything but the
/// vector of a text. Older folders have no file for it.
void check_normalize_module(const std::string& path);

} // namespace torch_attention::models
