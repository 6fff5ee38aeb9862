// Encoders of text, images and sound.

#include <weights/pretrained/describe.h>

#include <check.h>

#include <format_text.h>
#include <algorithm>

namespace torch_attention::weights::pretrained {

namespace {

/// Rotary or absolute positions.
void set_esm_positions(Layer& layer) {
  const auto positions = positions_of(layer);
  if (positions == "rotary") {
    set_rotary(layer);
  } else {
    check_absolute(layer, positions);
    ignore_rotary(layer.config);
  }
}

/// Groups of layers share their weights.
void set_albert_path(Layer& layer) {
  auto& config = layer.config;
  const auto groups = config.integer("num_hidden_groups").value_or(1);
  const auto layers = config.required_integer("num_hidden_layers");
  TORCH_ATTENTION_CHECK(
      groups > 0 && layers % groups == 0 &&
          config.integer("inner_group_num").value_or(1) == 1,
      "expected num_hidden_groups that divides num_hidden_layers, and "
      "inner_group_num = 1, in \"{}\"",
      config.path());
  layer.path = format_text(
      "encoder.albert_layer_groups.{}.albert_layers.0.attention",
      layer.index / (layers / groups));
}

/// Reads the files of the model's own code.
void describe_nomic_bert(Layer& layer) {
  auto& config = layer.config;
  TORCH_ATTENTION_CHECK(
      config.number("rotary_emb_base").value_or(1000) == 1000 &&
          config.number("rotary_emb_fraction").value_or(1) == 1,
      "expected rotary_emb_base = 1000 and rotary_emb_fraction = 1 in "
      "\"{}\"",
      config.path());
  // The class of `transformers` knows no n_head, and has 12 heads instead.
  constexpr int64_t kHeads = 12;
  TORCH_ATTENTION_CHECK(
      config.contains("num_attention_heads") ||
          layer.options.num_heads() == kHeads,
      "expected num_attention_heads in \"{}\", or n_head = {}, but got {}",
      config.path(),
      kHeads,
      layer.options.num_heads());
  layer.layout = WeightLayout("nomic_bert");
  layer.layout
      .split(
          "Wqkv.weight", {"W_query.weight", "W_key.weight", "W_value.weight"})
      .rename("out_proj.weight", "out_proj.weight");
}

/// The class determines whether attention is causal: the class for captions is,
/// the classes for retrieval are not.
void set_blip_text_causal(Layer& layer) {
  auto& config = layer.config;
  constexpr auto* kClasses = "architectures";
  const bool writes = config.lists(kClasses, "BlipForConditionalGeneration");
  const bool reads = config.lists(kClasses, "BlipModel") ||
      config.lists(kClasses, "BlipTextModel") ||
      config.lists(kClasses, "BlipForImageTextRetrieval");
  TORCH_ATTENTION_CHECK(
      writes != reads,
      "expected BlipForConditionalGeneration, whose text sees what is "
      "before, or BlipModel or BlipForImageTextRetrieval, whose text sees "
      "all, as \"architectures\" of \"{}\"",
      config.path());
  layer.options.causal(writes);
}

void check_dpt_backbone(Layer& layer) {
  TORCH_ATTENTION_CHECK(
      !layer.config.has("backbone_config") ||
          layer.config.flag("is_hybrid").value_or(false),
      "the attention of \"{}\" is that of its backbone_config, a model of "
      "its own",
      layer.config.path());
}

/// Only some layers attend to the image.
void require_qformer_cross(Layer& layer) {
  const auto frequency =
      layer.config.integer("cross_attention_frequency").value_or(2);
  TORCH_ATTENTION_CHECK(
      !layer.is_cross || (frequency > 0 && layer.index % frequency == 0),
      "layer {} of \"{}\" has no cross-attention",
      layer.index,
      layer.config.path());
}

/// The class has values for all heads.
void check_all_heads_have_keys(Layer& layer) {
  const auto heads = layer.options.num_heads();
  const auto of_keys =
      layer.config.integer("num_key_value_heads").value_or(heads);
  TORCH_ATTENTION_CHECK(
      of_keys == heads,
      "expected as many heads of keys as of queries in \"{}\", but got {} "
      "beside {}",
      layer.config.path(),
      of_keys,
      heads);
}

/// Files of the model's own code have the sizes in an object of Whisper's
/// names.
void refuse_whisper_config(Layer& layer) {
  TORCH_ATTENTION_CHECK(
      layer.config.object("whisper_config").fields().empty(),
      "expected no whisper_config in \"{}\", whose sizes are not read: "
      "save_pretrained the model",
      layer.config.path());
}

/// Chunks of Qwen 2.5 Omni's sounds: `n_window` tokens, of twice as many
/// frames.
void set_omni_sound_chunks(Layer& layer) {
  layer.options.chunk(positive(layer.config, "n_window", 100));
}

/// Chunks of Qwen 3's sounds. Pieces of twice `n_window` frames become 13
/// tokens each, and `n_window_infer` frames of pieces see each other. With
/// other sizes the last piece of a sound may have more, and then chunks have.
void set_qwen3_sound_chunks(Layer& layer) {
  constexpr int64_t kTokensOfPiece = 13;
  auto& config = layer.config;
  const auto half = positive(config, "n_window", 50);
  TORCH_ATTENTION_CHECK(
      half >= 49 && half <= 52,
      "expected n_window from 49 to 52 in \"{}\", of which pieces have 13 "
      "tokens, but got {}",
      config.path(),
      half);
  const auto pieces = positive(config, "n_window_infer", 800) / half / 2;
  TORCH_ATTENTION_CHECK(
      pieces > 0 && pieces < kUnlimited,
      "expected n_window_infer of at least 2 * n_window in \"{}\"",
      config.path());
  layer.options.chunk(kTokensOfPiece * pieces);
}

/// Rotates a part of queries, keys and values.
void set_clvp_rotary(Layer& layer) {
  auto& config = layer.config;
  const auto size = config.integer("projection_dim").value_or(768);
  if (config.flag("use_rotary_embedding").value_or(true)) {
    const auto rotated = size / (2 * layer.options.num_heads());
    layer.options.rotary(RotaryOptions().dim(std::max<int64_t>(rotated, 32)))
        .rotate_values(true);
  }
}

} // namespace

Describers encoder_describers() {
  return {
      {"set_clvp_rotary", set_clvp_rotary},
      {"set_omni_sound_chunks", set_omni_sound_chunks},
      {"set_qwen3_sound_chunks", set_qwen3_sound_chunks},
      {"require_qformer_cross", require_qformer_cross},
      {"check_all_heads_have_keys", check_all_heads_have_keys},
      {"refuse_whisper_config", refuse_whisper_config},
      {"set_esm_positions", set_esm_positions},
      {"set_albert_path", set_albert_path},
      {"describe_nomic_bert", describe_nomic_bert},
      {"set_blip_text_causal", set_blip_text_causal},
      {"check_dpt_backbone", check_dpt_backbone},
  };
}

} // namespace torch_attention::weights::pretrained
