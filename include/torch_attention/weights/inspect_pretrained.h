#pragma once

#include <torch_attention/export.h>
#include <torch_attention/weights/pretrained.h>

#include <cstdint>
#include <string>
#include <vector>

namespace torch_attention {

/// The attention of a model, as its configuration describes it.
struct TORCH_ATTENTION_API PretrainedInfo {
  /// A group of layers with the same attention.
  struct Layers {
    /// The part of the model; `kAuto` if it has no parts.
    PretrainedPart part = PretrainedPart::kAuto;
    /// The `model_type` of that part.
    std::string model_type;
    /// Whether this is the decoder's attention to the output of the encoder.
    bool is_cross = false;
    /// Whether this is latent attention, computed by `LatentAttention`.
    bool is_latent = false;
    /// Whether the scores add products with relative positions, computed by
    /// `RelativeAttention`.
    bool is_relative = false;
    /// Whether it sees a window beside global tokens, computed by
    /// `LongformerAttention`.
    bool is_longformer = false;
    /// Whether the caller has to pass a relative position bias
    /// (`PretrainedOptions::bias_by_caller`).
    bool needs_bias = false;
    /// Whether the caller has to pass the angles of the rotary embedding
    /// (`PretrainedOptions::rotary_by_caller`).
    bool needs_rotary = false;
    /// Whether the caller has to pass what values are made of, since positions
    /// are added to what queries and keys are made of
    /// (`ForwardOptions::value_input`).
    bool needs_value_input = false;
    /// Whether the tokens of an image in the prompt attend to each other in
    /// both directions. The caller has to pass their positions
    /// (`ForwardOptions::visible_blocks`).
    bool has_image_blocks = false;
    /// Whether the patches of an image attend only within their window. The
    /// caller has to pass the windows (`ForwardOptions::cu_seqlens`, which
    /// `rotary_from_pretrained` makes).
    bool has_image_windows = false;
    /// The numbers of the layers, ascending; empty for a part that cannot be
    /// loaded next to one that can.
    std::vector<int64_t> numbers;
    /// A short description, for example "12 heads of 64, causal, rotary, no
    /// bias"; for layers that cannot be loaded, the reason.
    std::string description;
    /// C++ code that makes the layers' `MultiHeadAttentionOptions`; empty if
    /// there is none, or if the attention is of another class.
    std::string options;
    /// C++ code that loads one of the layers, for example
    /// `attention_from_pretrained("gpt2", layer)`; empty if none can be loaded.
    std::string call;
  };

  std::string model_type;
  std::vector<Layers> layers;
};

/// Describes the attention of each layer, and how to load it, from the
/// `config.json` that `save_pretrained` wrote to `folder`. Does not read
/// weights. Layers of a part with the same attention form one group; groups are
/// in the order of their first layers.
///
/// Throws c10::Error if the configuration cannot be read, or if its model is
/// unknown or has attention that this library does not compute. If that
/// concerns only one of several parts, the part's description gives the reason.
///
/// Example:
/// ```
/// for (const auto& found : inspect_pretrained("gemma-3-1b").layers) {
///   std::cout << found.numbers.size() << " layers: " << found.description;
/// }
/// ```
TORCH_ATTENTION_API PretrainedInfo
inspect_pretrained(const std::string& folder);

} // namespace torch_attention
