#pragma once

#include <weights/pretrained/families.h>

// The class of modules that computes the attention of a layer.

namespace torch_attention::weights::pretrained {

enum class AttentionClass {
  kMultiHead,
  kRelative,
  kLongformer,
};

AttentionClass class_of(const DescribedAttention& described);

/// Throws c10::Error, which names the function that loads the layer, unless it
/// is of this class.
void check_class(
    ModelConfig& config,
    const DescribedAttention& described,
    AttentionClass wanted);

/// Returns what stands before "attention_from_pretrained" in the name of the
/// function that loads this class: "relative_".
const char* prefix_of_loader(AttentionClass of);

} // namespace torch_attention::weights::pretrained
