#pragma once

#include <torch_attention/export.h>
#include <torch_attention/weights/pretrained.h>

#include <cstdint>
#include <string>
#include <vector>

namespace torch_attention {

/// The attention of a model, as its configuration describes it.
struct TORCH_ATTENTION_API PretrainedInfo {
  /// Layers with the same attention.
  struct Layers {
    /// The part of the model; `kAuto` if it has no parts.
    PretrainedPart part = PretrainedPart::kAuto;
    /// The `model_type` of that part.
    std::string model_type;
    /// True for the decoder's attention to what the encoder gave.
    bool is_cross = false;
    /// True for latent attention, a `LatentAttention`.
    bool is_latent = false;
    /// True if only the caller can give a bias by the distance of tokens
    /// (`PretrainedOptions::bias_by_caller`).
    bool needs_bias = false;
    /// True if only the caller can give the angles of the rotary embedding
    /// (`PretrainedOptions::rotary_by_caller`).
    bool needs_rotary = false;
    /// True if tokens of an image in the prompt see each other to both sides,
    /// and only the caller can say which they are
    /// (`ForwardOptions::visible_blocks`).
    bool has_image_blocks = false;
    /// True if the patches of an image see those of their window alone, which
    /// only the caller can say (`ForwardOptions::cu_seqlens`, as
    /// `rotary_from_pretrained` makes it).
    bool has_image_windows = false;
    /// The layers' numbers, ascending; none for a part that cannot be loaded
    /// beside one that can.
    std::vector<int64_t> numbers;
    /// A few words, for example "12 heads of 64, causal, rotary, no bias"; for
    /// layers that cannot be loaded, the reason.
    std::string description;
    /// C++ that makes the same `MultiHeadAttentionOptions`; empty if there is
    /// none, or the attention is of another class.
    std::string options;
    /// C++ that loads one of the layers, for example
    /// `attention_from_pretrained("gpt2", layer)`; empty if none can be.
    std::string call;
  };

  std::string model_type;
  std::vector<Layers> layers;
};

/// Looks at the `config.json` in `folder`, as `save_pretrained` wrote it, and
/// at no weights: returns what the attention of each layer is, and how it is
/// loaded. Layers of the same part with the same attention come together, in
/// the order of their first ones.
///
/// Throws c10::Error if the configuration is of an unknown model, whose
/// attention is not computed, or cannot be read. A part of which this is so
/// beside others has the reason as its description.
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
