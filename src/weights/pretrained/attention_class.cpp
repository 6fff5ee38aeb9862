#include <weights/pretrained/attention_class.h>

#include <check.h>

namespace torch_attention::weights::pretrained {

namespace {

/// Describes attention of this class, as in "its model_type has ...".
const char* words_of(AttentionClass of) {
  switch (of) {
    case AttentionClass::kRelative:
      return "scores that add products with relative positions";
    case AttentionClass::kLongformer:
      return "a window beside global tokens";
    case AttentionClass::kMultiHead:
      break;
  }
  return "attention without relative positions and global tokens";
}

} // namespace

AttentionClass class_of(const DescribedAttention& described) {
  return described.relative  ? AttentionClass::kRelative
      : described.longformer ? AttentionClass::kLongformer
                             : AttentionClass::kMultiHead;
}

void check_class(
    ModelConfig& config,
    const DescribedAttention& described,
    AttentionClass wanted) {
  const auto found = class_of(described);
  TORCH_ATTENTION_CHECK(
      found == wanted,
      "model_type \"{}\" of \"{}\" has {}: {}attention_from_pretrained loads it",
      described.model_type,
      config.path(),
      words_of(found),
      prefix_of_loader(found));
}

const char* prefix_of_loader(AttentionClass of) {
  switch (of) {
    case AttentionClass::kRelative:
      return "relative_";
    case AttentionClass::kLongformer:
      return "longformer_";
    case AttentionClass::kMultiHead:
      break;
  }
  return "";
}

} // namespace torch_attention::weights::pretrained
