#pragma once

#include <torch_attention/nn/options/relative_attention.h>
#include <weights/pretrained/describe.h>

#include <optional>

// Attention whose scores add products with relative positions.

namespace torch_attention::weights::pretrained {

/// Returns options of this kind, with the sizes of the layer.
RelativeAttentionOptions relative_of(const Layer& layer, RelativeKind kind);

/// Returns the options of the layer's `RelativeAttention`; none if it has other
/// attention.
std::optional<RelativeAttentionOptions> relative_options(const Layer& layer);

/// Describes the positions, for example "relative positions from -64 to 8".
std::string words_of(const RelativeAttentionOptions& options);

} // namespace torch_attention::weights::pretrained
