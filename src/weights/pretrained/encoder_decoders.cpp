// Models of an encoder and a decoder, which attends to its output.

#include <weights/pretrained/describe.h>

#include <format_text.h>

#include <c10/util/Exception.h>

namespace torch_attention::weights::pretrained {

namespace {

void set_stack(Layer& layer, const char* dropout) {
  layer.options
      .causal(layer.part == PretrainedPart::kDecoder && !layer.is_cross)
      .dropout(layer.config.number(dropout).value_or(0));
  // Those of the other stack.
  layer.config.ignore(
      {"encoder_attention_heads",
       "decoder_attention_heads",
       "num_attention_heads",
       "num_key_value_heads",
       "max_position_embeddings",
       "max_source_positions",
       "max_target_positions"});
}

} // namespace

void describe_bart(Layer& layer) {
  set_stack(layer, "attention_dropout");
  layer.options.qkv_bias(true);
  layer.layout = WeightLayout::bart();
  // For the embeddings and the layers around.
  layer.config.ignore(
      {"normalize_before",
       "add_final_layer_norm",
       "add_bias_logits",
       "extra_pos_embeddings",
       "do_blenderbot_90_layernorm",
       "layernorm_variant",
       "static_position_embeddings",
       "normalize_embedding"});
}

void describe_mvp(Layer& layer) {
  refuse_flag(
      layer,
      "use_prompt",
      "the learned prompt before its keys and values is not computed");
  describe_bart(layer);
}

/// Series of numbers.
void describe_time_series(Layer& layer) {
  describe_bart(layer);
  layer.config.ignore("scaling");
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
  // Qwen2.5-Omni: the mask says which tokens see each other.
  layer.config.ignore("n_window");
}

/// With a bias of the keys. The mask says which tokens see each other.
void describe_qwen_audio(Layer& layer) {
  describe_bart(layer);
  layer.options.causal(false);
  layer.config.ignore({"conv_chunksize", "n_window", "n_window_infer"});
}

/// The self-attention of both stacks rotates pairs of neighbours.
void describe_moonshine(Layer& layer) {
  auto& config = layer.config;
  set_stack(layer, "attention_dropout");
  set_biases(layer);
  layer.options.out_bias(false);
  // The class computes both stacks with the numbers of heads of one of them.
  const auto heads = layer.options.num_heads();
  for (const auto* field :
       {"encoder_num_attention_heads",
        "encoder_num_key_value_heads",
        "decoder_num_attention_heads",
        "decoder_num_key_value_heads"}) {
    const auto other = config.integer(field).value_or(heads);
    TORCH_CHECK(
        other == heads,
        format_text(
            "expected as many heads of keys as of queries in both stacks of "
            "\"{}\", but got {} = {} beside {}",
            config.path(),
            field,
            other,
            heads));
  }
  config.ignore(
      {"encoder_num_attention_heads",
       "encoder_num_key_value_heads",
       "decoder_num_attention_heads",
       "decoder_num_key_value_heads",
       // Zeros behind the heads change nothing.
       "pad_head_dim_to_multiple_of"});
  if (layer.is_cross) {
    ignore_rotary(config);
  } else {
    set_rotary(layer, with_partial(0.9), RotaryPairing::kInterleaved);
  }
}

/// Scores are not scaled. The self-attention of layer 0 holds the bias by
/// distance that all layers add; of UMT5 each holds its own.
void describe_t5(Layer& layer) {
  auto& config = layer.config;
  TORCH_CHECK(
      !layer.is_cross || config.flag("is_encoder_decoder").value_or(true),
      format_text(
          "expected is_encoder_decoder = true in \"{}\" for cross-attention, "
          "but got false, with which the class adds its keys to those of "
          "self-attention",
          config.path()));
  set_stack(layer, "dropout_rate");
  layer.options.out_bias(false).scale(1.0).head_dim(config.integer("d_kv"));
  layer.needs_bias = !layer.is_cross;
  config.ignore(
      {"n_positions",
       "relative_attention_num_buckets",
       "relative_attention_max_distance",
       "scale_decoder_outputs",
       // Only UMT5's own program writes it, and nothing reads it.
       "scalable_attention"});
  layer.layout = linear_layers("t5", "q", "k", "v", "o");
  layer.layout.outside("relative_attention_bias.weight");
}

namespace {

void describe_plain_decoder(Layer& layer, bool has_bias) {
  layer.options.qkv_bias(has_bias).out_bias(has_bias).dropout(
      layer.config.number("attention_dropout").value_or(0));
  layer.layout = WeightLayout::bart();
}

} // namespace

/// Attends to what another model gave, of a size of its own.
void describe_trocr(Layer& layer) {
  describe_plain_decoder(layer, /*has_bias=*/true);
  layer.d_context = layer.config.integer("cross_attention_hidden_size");
  // For the embeddings.
  layer.config.ignore(
      {"use_learned_position_embeddings", "layernorm_embedding"});
}

void describe_musicgen(Layer& layer) {
  describe_plain_decoder(layer, /*has_bias=*/false);
}

namespace {

/// Scores are not scaled.
void describe_dia(Layer& layer) {
  set_heads(layer);
  layer.options.out_bias(false).scale(1.0);
}

} // namespace

void describe_dia_encoder(Layer& layer) {
  describe_dia(layer);
  layer.options.causal(false);
  set_rotary(layer);
}

/// Its cross-attention has sizes of its own, and does not rotate.
void describe_dia_decoder(Layer& layer) {
  auto& config = layer.config;
  describe_dia(layer);
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

} // namespace torch_attention::weights::pretrained
