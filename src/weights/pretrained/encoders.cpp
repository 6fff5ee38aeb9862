// Encoders of text, images and sound.

#include <weights/pretrained/describe.h>

#include <format_text.h>

#include <c10/util/Exception.h>

namespace torch_attention::weights::pretrained {

namespace {

/// The layout of BERT, beside other norms that lie in the attention's path.
WeightLayout bert_layout() {
  auto layout = WeightLayout::bert();
  for (const std::string norm : {"LayerNorm", "ln", "self_attn_layer_norm"}) {
    for (const auto* part : {".weight", ".bias", ".gamma", ".beta"}) {
      layout.outside(norm + part);
    }
  }
  return layout;
}

void set_dropout_of_probs(Layer& layer) {
  layer.options.dropout(
      layer.config.number("attention_probs_dropout_prob").value_or(0));
}

/// All biases, and what all encoders have.
void set_encoder(Layer& layer) {
  layer.options.causal(false).qkv_bias(true);
  set_dropout_of_probs(layer);
}

void check_absolute(Layer& layer, const std::string& positions) {
  TORCH_CHECK(
      positions == "absolute",
      format_text(
          "expected absolute as \"position_embedding_type\" of \"{}\", but got "
          "\"{}\", which adds to the scores what is not read",
          layer.config.path(),
          positions));
}

/// Causal as a decoder, if the class can be one.
void set_causal_of_decoder(Layer& layer) {
  const auto is_decoder = layer.config.flag("is_decoder").value_or(false);
  layer.options.causal(is_decoder && layer.config.class_has("is_decoder"));
}

std::string positions_of(Layer& layer) {
  return layer.config.text("position_embedding_type").value_or("absolute");
}

} // namespace

/// Encoders of BERT's kind. Their dense layer after attention is `out_proj`;
/// the norm after it is not attention's.
void describe_bert(Layer& layer) {
  check_absolute(layer, positions_of(layer));
  set_encoder(layer);
  set_causal_of_decoder(layer);
  layer.layout = bert_layout();
}

/// Causal, but for the tokens of an image.
void describe_git(Layer& layer) {
  set_encoder(layer);
  check_absolute(layer, positions_of(layer));
  layer.options.causal(true);
  layer.layout = bert_layout();
  // For the embeddings of videos, and of the images.
  layer.config.ignore({"num_image_with_embedding", "vision_config"});
}

/// To both sides, whatever `is_decoder` says.
void describe_tapas(Layer& layer) {
  describe_bert(layer);
  layer.options.causal(false);
  // For the embeddings.
  layer.config.ignore("reset_position_index_per_cell");
}

void describe_roformer(Layer& layer) {
  refuse_flag(layer, "rotary_value", "rotated values are not computed");
  describe_bert(layer);
  set_rotary(layer, {}, RotaryPairing::kInterleaved);
}

void describe_esm(Layer& layer) {
  const auto positions = positions_of(layer);
  set_encoder(layer);
  set_causal_of_decoder(layer);
  layer.layout = bert_layout();
  layer.layout.ignore("self.rotary_embeddings.inv_freq");
  if (positions == "rotary") {
    set_rotary(layer);
  } else {
    check_absolute(layer, positions);
    ignore_rotary(layer.config);
  }
}

/// Groups of layers share their weights.
void describe_albert(Layer& layer) {
  auto& config = layer.config;
  describe_bert(layer);
  layer.layout = linear_layers("albert", "query", "key", "value", "dense");
  layer.layout.outside("LayerNorm.weight").outside("LayerNorm.bias");
  const auto groups = config.integer("num_hidden_groups").value_or(1);
  const auto layers = config.required_integer("num_hidden_layers");
  TORCH_CHECK(
      groups > 0 && layers % groups == 0 &&
          config.integer("inner_group_num").value_or(1) == 1,
      format_text(
          "expected num_hidden_groups that divides num_hidden_layers, and "
          "inner_group_num = 1, in \"{}\"",
          config.path()));
  layer.path = format_text(
      "encoder.albert_layer_groups.{}.albert_layers.0.attention",
      layer.index / (layers / groups));
}

void describe_distilbert(Layer& layer) {
  layer.options.causal(false).qkv_bias(true).dropout(
      layer.config.number("attention_dropout").value_or(0));
  layer.layout =
      linear_layers("distilbert", "q_lin", "k_lin", "v_lin", "out_lin");
}

/// XLM's are causal if the configuration says so.
void describe_xlm(Layer& layer) {
  describe_distilbert(layer);
  layer.options.causal(layer.config.flag("causal").value_or(false));
}

/// One bias, by the distance of tokens, is shared by all layers.
void describe_mpnet(Layer& layer) {
  set_encoder(layer);
  layer.needs_bias = true;
  layer.config.ignore("relative_attention_num_buckets");
  layer.layout = linear_layers("mpnet", "attn.q", "attn.k", "attn.v", "attn.o");
  layer.layout.outside("LayerNorm.weight").outside("LayerNorm.bias");
}

void describe_eurobert(Layer& layer) {
  set_heads(layer);
  set_biases(layer);
  layer.options.causal(false);
  set_rotary(layer);
}

/// Files have queries, keys and values in one.
void describe_nomic_bert(Layer& layer) {
  auto& config = layer.config;
  set_heads(layer);
  set_dropout_of_probs(layer);
  layer.options.causal(false).out_bias(false);
  // As the files of the model's own code say it.
  for (const auto* field :
       {"causal",
        "rotary_emb_interleaved",
        "scale_attn_by_inverse_layer_idx"}) {
    refuse_flag(layer, field, "it is not known of this model");
  }
  TORCH_CHECK(
      config.number("rotary_emb_base").value_or(1000) == 1000 &&
          config.number("rotary_emb_fraction").value_or(1) == 1,
      format_text(
          "expected rotary_emb_base = 1000 and rotary_emb_fraction = 1 in "
          "\"{}\"",
          config.path()));
  config.ignore(
      {"fused_bias_fc",
       "reorder_and_upcast_attn",
       "rotary_emb_scale_base",
       "rotary_scaling_factor",
       "scale_attn_weights"});
  layer.layout = WeightLayout("nomic_bert");
  layer.layout
      .split(
          "Wqkv.weight", {"W_query.weight", "W_key.weight", "W_value.weight"})
      .rename("out_proj.weight", "out_proj.weight");
  layer.others.emplace_back("layers.{}.self_attn", WeightLayout::llama());
  set_rotary(layer);
}

/// Images: `save_pretrained` writes the older names.
void describe_vit(Layer& layer) {
  set_encoder(layer);
  layer.options.qkv_bias(layer.config.flag("qkv_bias").value_or(true));
  layer.layout = linear_layers(
      "vit",
      "attention.query",
      "attention.key",
      "attention.value",
      "output.dense");
  layer.others.emplace_back("layers.{}.attention", WeightLayout::llama());
  // For the embeddings, and for another stack.
  layer.config.ignore("use_mid_position_embeddings");
  layer.config.ignore("decoder_num_attention_heads");
}

namespace {

/// Files have queries, keys and values in one.
void describe_joined(Layer& layer, const WeightLayout& layout) {
  set_encoder(layer);
  set_rotary(layer);
  layer.layout = layout;
  layer.others.emplace_back("layers.{}.self_attn", WeightLayout::llama());
}

} // namespace

void describe_gte(Layer& layer) {
  describe_joined(layer, joined_layout("gte", "qkv_proj", "o_proj"));
}

void describe_jina(Layer& layer) {
  describe_joined(layer, joined_layout("jina", "Wqkv", "out_proj"));
}

void describe_esmc(Layer& layer) {
  set_heads(layer);
  set_biases(layer);
  layer.options.causal(false).qk_norm(HeadNormOptions(HeadNormKind::kLayer)
                                          .scope(HeadNormScope::kAllHeads)
                                          .eps(1e-5));
  set_rotary(layer);
}

void describe_internvl_vision(Layer& layer) {
  auto& config = layer.config;
  set_biases(layer);
  layer.options.causal(false).out_bias(true).dropout(
      config.number("attention_dropout").value_or(0));
  if (config.flag("use_qk_norm").value_or(false)) {
    layer.options.qk_norm(
        HeadNormOptions().scope(HeadNormScope::kAllHeads).eps(1e-6));
  }
  config.ignore("use_absolute_position_embeddings");
  layer.layout = linear_layers(
      "internvl", "q_proj", "k_proj", "v_proj", "projection_layer");
}

/// Videos: the attention of the patches of a frame. That of the frames, in
/// `temporal_attention`, has the same layout.
void describe_timesformer(Layer& layer) {
  set_encoder(layer);
  layer.options.qkv_bias(layer.config.flag("qkv_bias").value_or(true));
  layer.config.ignore("attention_type");
  layer.layout = joined_layout("timesformer", "attention.qkv", "output.dense");
}

/// Keys have no bias.
void describe_beit(Layer& layer) {
  describe_vit(layer);
  layer.options.key_bias(false);
  const bool has_own =
      layer.config.flag("use_relative_position_bias").value_or(false);
  const bool shares =
      layer.config.flag("use_shared_relative_position_bias").value_or(false);
  layer.needs_bias = has_own || shares;
  layer.config.ignore("use_absolute_position_embeddings");
  for (const std::string part : {"bias_table", "index"}) {
    layer.layout.outside(
        "attention.relative_position_bias.relative_position_" + part);
  }
}

/// The biases of queries and values have names of their own.
void describe_videomae(Layer& layer) {
  describe_vit(layer);
  layer.options.qkv_bias(layer.config.flag("qv_bias").value_or(true))
      .key_bias(false);
  layer.layout.rename("attention.q_bias", "W_query.bias")
      .rename("attention.v_bias", "W_value.bias");
}

namespace {

void describe_clip(Layer& layer, bool causal) {
  layer.options.causal(causal).qkv_bias(true).dropout(
      layer.config.number("attention_dropout").value_or(0));
  layer.layout = WeightLayout::bart();
}

} // namespace

void describe_clip_text(Layer& layer) {
  describe_clip(layer, /*causal=*/true);
}

/// And SigLIP's text.
void describe_clip_vision(Layer& layer) {
  describe_clip(layer, /*causal=*/false);
}

/// Causal where the model gets a mask, as its tokenizer gives one.
void describe_aimv2_text(Layer& layer) {
  describe_clip_text(layer);
  const bool bias = layer.config.flag("qkv_bias").value_or(false);
  layer.options.qkv_bias(bias).out_bias(bias);
}

void describe_aimv2_vision(Layer& layer) {
  describe_aimv2_text(layer);
  layer.options.causal(false);
  layer.config.ignore("use_head");
}

/// `save_pretrained` writes another name of the layers.
void describe_altclip_vision(Layer& layer) {
  describe_clip_vision(layer);
  layer.others.emplace_back("encoder.layer.{}.self_attn", layer.layout);
}

/// BLIP, and BLIP-2, which may have no biases.
void describe_blip_vision(Layer& layer) {
  describe_clip_vision(layer);
  layer.options.qkv_bias(layer.config.flag("qkv_bias").value_or(true));
  layer.layout = joined_layout("blip", "qkv", "projection");
}

/// Its class says if its tokens see those after them: one writes captions, one
/// reads texts.
void describe_blip_text(Layer& layer) {
  auto& config = layer.config;
  describe_bert(layer);
  constexpr auto* kClasses = "architectures";
  const bool writes = config.lists(kClasses, "BlipForConditionalGeneration");
  const bool reads = config.lists(kClasses, "BlipModel") ||
      config.lists(kClasses, "BlipTextModel") ||
      config.lists(kClasses, "BlipForImageTextRetrieval");
  TORCH_CHECK(
      writes != reads,
      format_text(
          "expected BlipForConditionalGeneration, whose text sees what is "
          "before, or BlipModel or BlipForImageTextRetrieval, whose text sees "
          "all, as \"architectures\" of \"{}\"",
          config.path()));
  layer.options.causal(writes);
}

void describe_wav2vec2(Layer& layer) {
  describe_clip(layer, /*causal=*/false);
  // For the convolutions before.
  layer.config.ignore(
      {"conv_bias", "feat_proj_layer_norm", "adapter_attn_dim"});
}

/// A series of numbers, in patches.
void describe_patchtst(Layer& layer) {
  describe_clip_vision(layer);
  // For the layers after attention, the series, and the embeddings.
  layer.config.ignore({"bias", "scaling", "positional_encoding_type"});
  // A second attention of each layer, over channels.
  refuse_flag(layer, "channel_attention", "its second attention is not read");
}

/// Queries, keys and values are one layer, in released files too.
void describe_mgp_str(Layer& layer) {
  auto& config = layer.config;
  layer.options.causal(false)
      .qkv_bias(config.flag("qkv_bias").value_or(true))
      .dropout(config.number("attn_drop_rate").value_or(0));
  config.ignore("output_a3_attentions");
  layer.layout = joined_layout("mgp-str", "qkv", "proj");
}

namespace {

WeightLayout layout_of_output() {
  return linear_layers("pix2struct", "query", "key", "value", "output");
}

} // namespace

/// Scores are not scaled.
void describe_pix2struct_vision(Layer& layer) {
  auto& config = layer.config;
  layer.options.causal(false)
      .out_bias(false)
      .scale(1.0)
      .head_dim(config.integer("d_kv"))
      .dropout(config.number("attention_dropout").value_or(0));
  // For its text.
  config.ignore(
      {"relative_attention_max_distance", "relative_attention_num_buckets"});
  layer.layout = layout_of_output();
}

void describe_kosmos_vision(Layer& layer) {
  auto& config = layer.config;
  layer.options.causal(false)
      .out_bias(false)
      .head_dim(config.integer("head_dim"))
      .dropout(config.number("attention_dropout").value_or(0));
  layer.layout = layout_of_output();
}

void describe_dpt(Layer& layer) {
  describe_vit(layer);
  TORCH_CHECK(
      !layer.config.has("backbone_config") ||
          layer.config.flag("is_hybrid").value_or(false),
      format_text(
          "the attention of \"{}\" is that of its backbone_config, a model of "
          "its own",
          layer.config.path()));
  // For the layers after the encoder.
  layer.config.ignore(
      {"head_in_index", "use_bias_in_fusion_residual", "backbone_config"});
}

void describe_janus_vision(Layer& layer) {
  set_biases(layer);
  layer.options.causal(false).out_bias(true).dropout(
      layer.config.number("attention_dropout").value_or(0));
  refuse_flag(layer, "use_qk_norm", "its norms do not fit its heads");
  layer.layout =
      linear_layers("janus", "q_proj", "k_proj", "v_proj", "projection_layer");
}

/// Keys have no bias.
void describe_glmasr(Layer& layer) {
  set_heads(layer);
  layer.options.causal(false).qkv_bias(true).key_bias(false);
  set_rotary(layer, with_partial(0.5));
}

/// Sound as it comes in.
void describe_voxtral_realtime(Layer& layer) {
  set_heads(layer);
  layer.options.qkv_bias(true).key_bias(false).window(
      layer.config.integer("sliding_window"));
  set_rotary(layer);
}

} // namespace torch_attention::weights::pretrained
