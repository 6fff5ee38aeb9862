#pragma once

#include <support/golden_model.h>

#include <torch_attention/torch_attention.h>

#include <exception>
#include <string>
#include <vector>

// Attention of models whose outputs are known.

namespace torch_attention::testing {

/// The largest number of tokens of small models, and that of their layers.
constexpr int64_t kContextLength = 32;
constexpr int64_t kMostLayers = 8;

/// The attention of one layer of a model, of which outputs are known.
struct KnownAttention {
  std::string model;
  /// "encoder.", for example; empty for a model without parts.
  std::string part;
  int64_t layer = 0;

  bool is_cross() const {
    return part == "cross.";
  }

  bool is_latent() const {
    return part == "latent.";
  }

  /// Returns whether the scores add products with relative positions.
  bool is_relative() const {
    return has_options(relative_options_from_config);
  }

  /// Returns whether tokens see a window beside global tokens.
  bool is_longformer() const {
    return has_options(longformer_options_from_config);
  }

  /// Returns whether the layer is of the class that `read` is for.
  template <typename Read>
  bool has_options(const Read& read) const {
    try {
      read(model_folder(model), layer, options().part());
      return !is_cross();
    } catch (const std::exception&) {
      return false;
    }
  }

  torch::Tensor get(const std::string& what, const std::string& side = "")
      const {
    return find_expected(model, c10::str(side, part, layer, ".", what));
  }

  PretrainedOptions options() const {
    PretrainedOptions result;
    // Some inputs are longer than the context of the small models.
    if (const auto tokens = get("input").size(1); tokens > kContextLength) {
      result.context_length(tokens);
    }
    result.bias_by_caller(get("bias").defined() || get("mask").defined());
    result.rotary_by_caller(get("cos").defined());
    if (part == "encoder.") {
      result.part(PretrainedPart::kEncoder);
    } else if (part == "decoder.") {
      result.part(PretrainedPart::kDecoder);
    } else if (part == "text.") {
      result.part(PretrainedPart::kText);
    } else if (part == "vision.") {
      result.part(PretrainedPart::kVision);
    } else if (part == "audio.") {
      result.part(PretrainedPart::kAudio);
    }
    return result;
  }

  ForwardOptions call(const std::string& side = "") const {
    ForwardOptions result;
    if (const auto bias = get("bias", side); bias.defined()) {
      result.bias(bias);
    }
    if (const auto mask = get("mask"); mask.defined()) {
      result.mask(mask);
    }
    if (const auto blocks = get("blocks"); blocks.defined()) {
      result.visible_blocks(blocks);
    }
    if (const auto value = get("value", side); value.defined()) {
      result.value_input(value);
    }
    result.global_tokens(get("global"));
    result.key_padding_mask(get("padding"));
    if (const auto starts = get("cu_seqlens"); starts.defined()) {
      result.cu_seqlens(starts);
    }
    if (const auto cos = get("cos"); cos.defined()) {
      result.rotary_cos(cos).rotary_sin(get("sin"));
    }
    return result;
  }
};

inline std::vector<KnownAttention> known_attentions(const std::string& model) {
  std::vector<KnownAttention> result;
  for (const auto& item :
       read_weights(model_folder(model) + "/expected.safetensors")) {
    const auto& key = item.key();
    for (const std::string part :
         {"",
          "encoder.",
          "decoder.",
          "cross.",
          "latent.",
          "text.",
          "vision.",
          "audio."}) {
      for (int64_t layer = 0; layer < kMostLayers; ++layer) {
        if (key == c10::str(part, layer, ".output")) {
          result.push_back({model, part, layer});
        }
      }
    }
  }
  return result;
}

/// The output of a layer for the known input.
inline torch::Tensor output_of(
    const KnownAttention& known,
    const ForwardOptions& call,
    const std::string& side = "") {
  const auto folder = model_folder(known.model);
  const auto x = known.get("input", side);
  if (known.is_cross()) {
    return cross_attention_from_pretrained(
        folder, known.layer, known.options())(
        x, known.get("context", side), call);
  }
  if (known.is_latent()) {
    return latent_attention_from_pretrained(
        folder, known.layer, known.options())(x, call);
  }
  if (known.is_relative()) {
    return relative_attention_from_pretrained(
        folder, known.layer, known.options())(x, call);
  }
  if (known.is_longformer()) {
    return longformer_attention_from_pretrained(
        folder, known.layer, known.options())(x, call);
  }
  return attention_from_pretrained(folder, known.layer, known.options())(
      x, call);
}

} // namespace torch_attention::testing
