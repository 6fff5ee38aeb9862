// Models with an encoder and a decoder.

#include <weights/pretrained/describe.h>

#include <check.h>

namespace torch_attention::weights::pretrained {

namespace {

/// Self-attention has an interleaved rotary embedding in both stacks.
void describe_moonshine(Layer& layer) {
  auto& config = layer.config;
  // The class computes both stacks with the numbers of heads of one of them.
  const auto heads = layer.options.num_heads();
  for (const auto* field :
       {"encoder_num_attention_heads",
        "encoder_num_key_value_heads",
        "decoder_num_attention_heads",
        "decoder_num_key_value_heads"}) {
    const auto other = config.integer(field).value_or(heads);
    TORCH_ATTENTION_CHECK(
        other == heads,
        "expected as many heads of keys as of queries in both stacks of "
        "\"{}\", but got {} = {} beside {}",
        config.path(),
        field,
        other,
        heads);
  }
  config.ignore(
      {"encoder_num_attention_heads",
       "encoder_num_key_value_heads",
       "decoder_num_attention_heads",
       "decoder_num_key_value_heads",
       // Padding heads by zeros changes nothing.
       "pad_head_dim_to_multiple_of"});
  if (layer.is_cross) {
    ignore_rotary(config);
  } else {
    set_rotary(layer, with_partial(0.9), RotaryPairing::kInterleaved);
  }
}

/// All layers add a relative bias. Its weight is in the self-attention of layer
/// 0, in UMT5 of each layer.
void set_t5_bias(Layer& layer) {
  TORCH_ATTENTION_CHECK(
      !layer.is_cross || layer.config.flag("is_encoder_decoder").value_or(true),
      "expected is_encoder_decoder = true in \"{}\" for cross-attention, "
      "but got false, with which the class adds its keys to those of "
      "self-attention",
      layer.config.path());
  layer.needs_bias = !layer.is_cross;
}

/// The encoder adds biases by the places of words, too.
void set_udop_bias(Layer& layer) {
  if (layer.part == PretrainedPart::kEncoder) {
    layer.bias_of_caller = "a bias by distances and places on the page";
  }
}

/// Cross-attention has separate sizes and no rotary embedding.
void describe_dia_decoder(Layer& layer) {
  auto& config = layer.config;
  if (!layer.is_cross) {
    config.ignore(
        {"cross_num_attention_heads",
         "cross_num_key_value_heads",
         "cross_head_dim",
         "cross_hidden_size"});
    set_rotary(layer);
    return;
  }
  layer.options.num_heads(config.required_integer("cross_num_attention_heads"))
      .num_kv_heads(config.required_integer("cross_num_key_value_heads"))
      .head_dim(config.required_integer("cross_head_dim"));
  layer.d_context = config.required_integer("cross_hidden_size");
  ignore_rotary(config);
}

} // namespace

Describers encoder_decoder_describers() {
  return {
      {"describe_moonshine", describe_moonshine},
      {"set_t5_bias", set_t5_bias},
      {"set_udop_bias", set_udop_bias},
      {"describe_dia_decoder", describe_dia_decoder},
  };
}

} // namespace torch_attention::weights::pretrained
