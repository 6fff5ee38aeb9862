#pragma once

#include <iosfwd>
#include <string>

namespace torch_attention::weights::pretrained {

/// Whether `path` is a folder with the configuration of a known model.
bool is_known_model(const std::string& path);

/// Why a folder with the configuration of another model cannot be loaded by it,
/// in a sentence; empty if `path` is none.
std::string why_unknown(const std::string& path);

/// Prints the attention of each layer of the model in `folder`, those that are
/// equal together: what it is in a few words, and the C++ lines that make it.
void list_layers(const std::string& folder, std::ostream& out);

} // namespace torch_attention::weights::pretrained
