#pragma once

#include <string>
#include <vector>

// The verbs of models.json: small operations that describe a layer.

namespace torch_attention::weights::pretrained {

struct Layer;

/// The arguments of a verb, such as {"interleaved", "share 0.5"}.
using Arguments = std::vector<std::string>;
using Verb = void (*)(Layer&, const Arguments&);

/// A verb of an entry, with its arguments.
struct Step {
  Verb run;
  Arguments arguments;
};

/// Parses a step such as "rotary: interleaved, share 0.5". Throws c10::Error if
/// the verb is unknown or has another number of arguments.
Step read_step(const std::string& text);

/// Returns the names of the functions for the verb "call".
std::vector<std::string> describer_names();

} // namespace torch_attention::weights::pretrained
