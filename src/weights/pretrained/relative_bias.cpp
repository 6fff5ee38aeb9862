#include <weights/pretrained/relative_bias.h>

#include <check.h>
#include <format_text.h>
#include <weights/pretrained/families.h>

namespace torch_attention::weights::pretrained {

DescribedRelativeBias describe_relative_bias(
    ModelConfig& config,
    PretrainedPart part,
    std::optional<int64_t> layer) {
  const auto type = config.text("model_type").value_or("none");
  const bool is_mpnet = type == "mpnet";
  const bool is_of_layer = type == "umt5";
  TORCH_ATTENTION_CHECK(
      is_mpnet || is_of_layer || type == "t5" || type == "mt5" ||
          type == "pop2piano" || type == "switch_transformers",
      "expected a model with a bias by the distance of tokens, one of mpnet, "
      "mt5, pop2piano, switch_transformers, t5 and umt5, but got model_type "
      "\"{}\" in \"{}\"",
      type,
      config.path());
  const bool is_decoder = part == PretrainedPart::kDecoder;
  TORCH_ATTENTION_CHECK(
      is_mpnet ? part == PretrainedPart::kAuto
               : is_decoder || part == PretrainedPart::kEncoder,
      "{}{}\"",
      is_mpnet ? "expected no part, but kAuto, of \""
               : "expected PretrainedPart::kEncoder or kDecoder as the part of "
                 "\"",
      config.path());
  TORCH_ATTENTION_CHECK(
      layer || !is_of_layer,
      "expected a layer, since each of model_type \"{}\" in \"{}\" has a "
      "bias of its own: relative_bias_from_pretrained(folder, layer, "
      "options)",
      type,
      config.path());
  constexpr int64_t kFirst = 0;
  const auto attention =
      describe_attention(config, {layer.value_or(kFirst), part});
  const auto options =
      RelativeBiasOptions(attention.options.num_heads())
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
      is_mpnet ? format_text("{}.{}", stack, kName)
               : format_text(
                     "{}.block.{}.layer.0.SelfAttention.{}",
                     stack,
                     is_of_layer ? *layer : kFirst,
                     kName)};
}

} // namespace torch_attention::weights::pretrained
