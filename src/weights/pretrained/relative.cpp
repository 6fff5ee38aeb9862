#include <weights/pretrained/relative.h>

#include <check.h>
#include <format_text.h>

#include <c10/util/Exception.h>

#include <string>

namespace torch_attention::weights::pretrained {

namespace {

void add_names_of_sinusoids(Layer& layer) {
  layer.layout.rename("linear_pos.weight", "W_pos.weight");
}

/// The conformers of wav2vec2 and Seamless: `position_embeddings_type`.
void describe_conformer(Layer& layer) {
  auto& config = layer.config;
  const auto type = config.text("position_embeddings_type").value_or("none");
  config.ignore(
      {"rotary_embedding_base",
       "max_source_positions",
       "left_max_position_embeddings",
       "right_max_position_embeddings"});
  if (type == "relative" && config.class_has("max_source_positions")) {
    layer.relative = relative_of(layer, RelativeKind::kSinusoids);
    add_names_of_sinusoids(layer);
  } else if (
      type == "relative_key" &&
      config.class_has("left_max_position_embeddings")) {
    layer.relative =
        relative_of(layer, RelativeKind::kLearned)
            .left(config.required_integer("left_max_position_embeddings"))
            .right(config.required_integer("right_max_position_embeddings"));
  } else {
    TORCH_ATTENTION_CHECK(
        type != "rotary",
        "expected relative positions or none in \"{}\", but got "
        "position_embeddings_type = \"rotary\", which rotates tokens before "
        "their projections and is not computed",
        config.path());
  }
}

/// The text of Seamless has other attention than its speech.
void describe_seamless(Layer& layer) {
  auto& config = layer.config;
  config.ignore(
      {"speech_encoder_attention_heads",
       "speech_encoder_chunk_size",
       "speech_encoder_left_chunk_num",
       "t2u_encoder_attention_heads",
       "t2u_decoder_attention_heads",
       "t2u_max_position_embeddings",
       "position_embeddings_type",
       "rotary_embedding_base",
       "max_source_positions",
       "left_max_position_embeddings",
       "right_max_position_embeddings"});
  if (layer.part != PretrainedPart::kAudio) {
    return;
  }
  layer.options.dropout(config.number("speech_encoder_dropout").value_or(0));
  layer.layout = linear_layers(
      "conformer", "linear_q", "linear_k", "linear_v", "linear_out");
  describe_conformer(layer);
  constexpr auto* kChunk = "speech_encoder_chunk_size";
  const auto chunk = config.integer(kChunk);
  // The first version has no chunks.
  if (!chunk || !config.class_has(kChunk)) {
    return;
  }
  TORCH_ATTENTION_CHECK(
      *chunk > 0 && layer.relative,
      "expected speech_encoder_chunk_size > 0, with position_embeddings_type = "
      "\"relative_key\", in \"{}\", but got {}",
      config.path(),
      *chunk);
  const auto before =
      config.integer("speech_encoder_left_chunk_num").value_or(-1);
  layer.options.chunk(chunk);
  layer.relative->chunks_before(before < 0 ? kUnlimited : before);
}

/// The layers of SpeechT5's encoder share their vectors, which are in another
/// module.
void check_is_decoder(Layer& layer) {
  TORCH_ATTENTION_CHECK(
      layer.part == PretrainedPart::kDecoder,
      "expected PretrainedPart::kDecoder or cross-attention of \"{}\", since "
      "the scores of its encoder add products with relative positions that all "
      "layers share, and that are not read",
      layer.config.path());
}

/// Parakeet. Files have the names of the class or those of other conformers.
void describe_parakeet(Layer& layer) {
  layer.relative = relative_of(layer, RelativeKind::kSinusoids);
  layer.layout = linear_layers(
      "parakeet", "linear_q", "linear_k", "linear_v", "linear_out");
  add_names_of_sinusoids(layer);
  for (const std::string part : {".weight", ".bias"}) {
    layer.layout.rename("q_proj" + part, "W_query" + part)
        .rename("k_proj" + part, "W_key" + part)
        .rename("v_proj" + part, "W_value" + part)
        .rename("o_proj" + part, "out_proj" + part);
  }
  layer.layout.rename("relative_k_proj.weight", "W_pos.weight")
      .rename("bias_u", "pos_bias_u")
      .rename("bias_v", "pos_bias_v")
      .rename("pos_bias_u", "pos_bias_u")
      .rename("pos_bias_v", "pos_bias_v");
}

/// Chunks of tokens, which see `sliding_window` - 1 tokens before, rounded down
/// to chunks. A call of the model may change the size of chunks.
void set_streaming_chunks(Layer& layer) {
  auto& config = layer.config;
  const auto lookahead =
      config.required_integer("default_num_lookahead_tokens");
  const auto window = config.required_integer("sliding_window");
  TORCH_ATTENTION_CHECK(
      lookahead >= 0 && window > 0,
      "expected default_num_lookahead_tokens >= 0 and sliding_window > 0 in "
      "\"{}\", but got {} and {}",
      config.path(),
      lookahead,
      window);
  layer.options.chunk(lookahead + 1);
  layer.relative->chunks_before((window - 1) / (lookahead + 1));
}

/// Granite Speech: blocks of `context_size` tokens. `most` is the field with
/// the largest distance.
void set_granite_speech(Layer& layer, const char* most) {
  auto& config = layer.config;
  const auto largest = config.required_integer(most);
  const auto block = config.required_integer("context_size");
  TORCH_ATTENTION_CHECK(
      block > 0 && block <= largest,
      "expected context_size in [1, {}] in \"{}\", but got {}",
      largest,
      config.path(),
      block);
  layer.options.chunk(block);
  layer.relative = relative_of(layer, RelativeKind::kLearned)
                       .left(largest)
                       .right(largest)
                       .last_first(true);
  layer.layout.rename("rel_pos_emb.weight", "distance_embedding.weight");
}

void describe_granite_speech(Layer& layer) {
  layer.layout = WeightLayout("granite_speech")
                     .rename("to_q.weight", "W_query.weight")
                     .split("to_kv.weight", {"W_key.weight", "W_value.weight"})
                     .rename("to_out.weight", "out_proj.weight")
                     .rename("to_out.bias", "out_proj.bias")
                     .outside("pre_norm.weight")
                     .outside("pre_norm.bias");
  set_granite_speech(layer, "max_pos_emb");
}

void describe_granite_speech5(Layer& layer) {
  set_granite_speech(layer, "max_position_embeddings");
}

/// The class reads the numbers of heads of an object, which files may have
/// beside the fields that it is made of.
void describe_fastspeech(Layer& layer) {
  auto& config = layer.config;
  const auto* stack =
      layer.part == PretrainedPart::kDecoder ? "decoder" : "encoder";
  const auto object = format_text("{}_config", stack);
  const auto heads = config.object(object).get("num_attention_heads");
  TORCH_ATTENTION_CHECK(
      heads.is_null() || heads.as_integer() == layer.options.num_heads(),
      "expected {} as num_attention_heads of {} in \"{}\", but got {}",
      layer.options.num_heads(),
      object,
      config.path(),
      heads.as_integer().value_or(0));
  layer.options.dropout(
      config.number(format_text("{}_attention_dropout_rate", stack))
          .value_or(0));
  layer.relative = relative_of(layer, RelativeKind::kSinusoids);
  add_names_of_sinusoids(layer);
}

} // namespace

RelativeAttentionOptions relative_of(const Layer& layer, RelativeKind kind) {
  const auto& options = layer.options;
  return RelativeAttentionOptions(
             options.d_in(), options.d_out(), options.num_heads())
      .kind(kind);
}

std::optional<RelativeAttentionOptions> relative_options(const Layer& layer) {
  if (!layer.relative) {
    return std::nullopt;
  }
  const auto& options = layer.options;
  TORCH_INTERNAL_ASSERT(
      !options.rotary() && !options.qk_norm() && !options.sinks() &&
          !options.value_dim() && options.out_proj() && !layer.is_cross,
      "models.json: a relative layer has options that it cannot have");
  return with_heads_of(options, *layer.relative).rule(options.rule());
}

std::string words_of(const RelativeAttentionOptions& options) {
  if (options.kind() == RelativeKind::kSinusoids) {
    return "sinusoids of relative positions";
  }
  if (options.kind() == RelativeKind::kRowsAndColumns) {
    return format_text(
        "relative positions in {} rows and {} columns",
        options.height(),
        options.width());
  }
  if (options.kind() == RelativeKind::kDisentangled) {
    const auto both =
        options.content_to_position() && options.position_to_content();
    return format_text(
        "relative positions of {} ({}{})",
        both                                ? "queries and keys"
            : options.content_to_position() ? "queries"
                                            : "keys",
        options.buckets() ? format_text("{} buckets up to ", *options.buckets())
                          : "up to ",
        options.max_distance());
  }
  return format_text(
      "learned relative positions from -{} to {}",
      options.left(),
      options.right());
}

Describers relative_describers() {
  return {
      {"check_is_decoder", check_is_decoder},
      {"describe_conformer", describe_conformer},
      {"describe_fastspeech", describe_fastspeech},
      {"describe_granite_speech", describe_granite_speech},
      {"describe_granite_speech5", describe_granite_speech5},
      {"describe_parakeet", describe_parakeet},
      {"describe_seamless", describe_seamless},
      {"set_streaming_chunks", set_streaming_chunks},
  };
}

} // namespace torch_attention::weights::pretrained
