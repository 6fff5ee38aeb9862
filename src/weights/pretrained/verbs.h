#pragma once

#include <string>
#include <vector>

// The verbs of models.json: small operations that describe a layer.

namespace torch_attention::weights::pretrained {

struct Layer;

/// The texts after a verb, such as {"interleaved", "share 0.5"}.
using Arguments = std::vector<std::string>;
using Verb = void (*)(Layer&, const Arguments&);

/// A verb of an entry, with its arguments.
struct Step {
  Verb run;
  Arguments arguments;
};

/// Reads a text such as "rotary: interleaved, share 0.5". Throws c10::Error if
/// there is no such verb, or it takes another number of arguments.
Step read_step(const std::string& text);

/// The names of the functions that the verb "call" knows.
std::vector<std::string> describer_names();

} // namespace torch_attention::weights::pretrained
