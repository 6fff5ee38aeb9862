#pragma once

#include <weights/pretrained/verbs.h>

// Verbs for what happens to heads around attention: norms, gates and factors.

namespace torch_attention::weights::pretrained {

/// Sets the norms of queries and keys.
void run_norms(Layer& layer, const Arguments& arguments);

/// Sets the norm of the context, whose name in files is the first argument.
void run_out_norm(Layer& layer, const Arguments& arguments);

/// Sets the gate of the context, whose name in files is the first argument. It
/// has no bias.
void run_gate(Layer& layer, const Arguments& arguments);

/// Multiplies values by a constant of the configuration.
void run_value_scale(Layer& layer, const Arguments& arguments);

/// Multiplies the elements of queries by factors of this name in files.
void run_query_scale(Layer& layer, const Arguments& arguments);

} // namespace torch_attention::weights::pretrained
