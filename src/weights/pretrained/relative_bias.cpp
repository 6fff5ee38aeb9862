#include <weights/pretrained/relative_bias.h>

#include <format_text.h>

#include <c10/util/Exception.h>

namespace torch_attention::weights::pretrained {

DescribedRelativeBias describe_relative_bias(
    ModelConfig& config,
    PretrainedPart part) {
  const auto type = config.text("model_type").value_or("none");
  const bool is_mpnet = type == "mpnet";
  TORCH_CHECK(
      is_mpnet || type == "t5" || type == "mt5" ||
          type == "switch_transformers",
      format_text(
          "expected a model with a bias by the distance of tokens, one of mpnet, "
          "mt5, switch_transformers and t5, but got model_type \"{}\" in \"{}\"",
          type,
          config.path()));
  const bool is_decoder = part == PretrainedPart::kDecoder;
  TORCH_CHECK(
      is_mpnet ? part == PretrainedPart::kAuto
               : is_decoder || part == PretrainedPart::kEncoder,
      is_mpnet ? "expected no part, but kAuto, of \""
               : "expected PretrainedPart::kEncoder or kDecoder as the part of "
                 "\"",
      config.path(),
      "\"");
  const auto heads =
      config.required_integer(is_mpnet ? "num_attention_heads" : "num_heads");
  const auto options =
      RelativeBiasOptions(heads)
          .num_buckets(
              config.integer("relative_attention_num_buckets").value_or(32))
          .max_distance(
              config.integer("relative_attention_max_distance").value_or(128))
          .bidirectional(!is_decoder);
  const auto* stack = is_decoder ? "decoder" : "encoder";
  constexpr auto* kName = "relative_attention_bias";
  return {
      type,
      options,
      is_mpnet
          ? format_text("{}.{}", stack, kName)
          : format_text("{}.block.0.layer.0.SelfAttention.{}", stack, kName)};
}

} // namespace torch_attention::weights::pretrained
