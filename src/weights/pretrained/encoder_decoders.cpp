// Models of an encoder and a decoder, which attends to its output.

#include <weights/pretrained/describe.h>

namespace torch_attention::weights::pretrained {

namespace {

void set_stack(Layer& layer, const char* dropout) {
  layer.options
      .causal(layer.part == PretrainedPart::kDecoder && !layer.is_cross)
      .dropout(layer.config.number(dropout).value_or(0));
  // Those of the other stack.
  for (const auto* field :
       {"encoder_attention_heads",
        "decoder_attention_heads",
        "num_attention_heads",
        "num_key_value_heads",
        "max_position_embeddings",
        "max_source_positions",
        "max_target_positions"}) {
    layer.config.ignore(field);
  }
}

} // namespace

void describe_bart(Layer& layer) {
  set_stack(layer, "attention_dropout");
  layer.options.qkv_bias(true);
  layer.layout = WeightLayout::bart();
  // Of the embeddings and the layers around.
  for (const auto* field :
       {"normalize_before",
        "add_final_layer_norm",
        "add_bias_logits",
        "extra_pos_embeddings",
        "do_blenderbot_90_layernorm",
        "layernorm_variant",
        "static_position_embeddings",
        "normalize_embedding"}) {
    layer.config.ignore(field);
  }
}

/// Keys have no bias.
void describe_whisper(Layer& layer) {
  describe_bart(layer);
  layer.options.key_bias(false);
}

/// Without a decoder, as models of sound and text have it.
void describe_whisper_encoder(Layer& layer) {
  describe_whisper(layer);
  layer.options.causal(false);
}

/// Scores are not scaled, and the self-attention of layer 0 holds the bias by
/// distance that all layers add.
void describe_t5(Layer& layer) {
  auto& config = layer.config;
  set_stack(layer, "dropout_rate");
  layer.options.out_bias(false).scale(1.0).head_dim(config.integer("d_kv"));
  layer.needs_bias = !layer.is_cross;
  for (const auto* field :
       {"n_positions",
        "relative_attention_num_buckets",
        "relative_attention_max_distance",
        "scale_decoder_outputs"}) {
    config.ignore(field);
  }
  layer.layout = linear_layers("t5", "q", "k", "v", "o");
  layer.layout.outside("relative_attention_bias.weight");
}

} // namespace torch_attention::weights::pretrained
