// Models in which only some layers have attention, or beside something else.

#include <weights/pretrained/describe.h>

#include <format_text.h>

#include <c10/util/Exception.h>

namespace torch_attention::weights::pretrained {

namespace {

void require_attention(const Layer& layer, bool has_attention) {
  TORCH_CHECK(
      has_attention,
      format_text(
          "layer {} of \"{}\" has no attention",
          layer.index,
          layer.config.path()));
}

/// By a list of the types of layers, if there is one.
void require_attention_by(Layer& layer, const char* field, bool otherwise) {
  const auto type = layer.config.text_at(field, layer.index);
  require_attention(
      layer,
      type ? *type == "full_attention" || *type == "attention" : otherwise);
}

} // namespace

void describe_bamba(Layer& layer) {
  auto& config = layer.config;
  require_attention(
      layer, config.has_element("attn_layer_indices", layer.index));
  config.ignore(
      {"mamba_conv_bias",
       "mamba_proj_bias",
       "mamba_chunk_size",
       "attn_rotary_emb",
       "mamba_n_heads",
       "mamba_d_head",
       "layers_block_type"});
  set_heads(layer);
  set_biases(layer);
  set_rotary(layer, with_partial(0.5));
}

void describe_falcon_h1(Layer& layer) {
  auto& config = layer.config;
  config.ignore(
      {"mamba_conv_bias",
       "mamba_proj_bias",
       "mamba_chunk_size",
       "mamba_n_heads",
       "mamba_d_head",
       "projectors_bias",
       "attention_in_multiplier",
       "attention_out_multiplier"});
  set_heads(layer);
  set_biases(layer);
  // Keys are multiplied, before they are rotated: so are the scores.
  layer.options.scale(
      config.number("key_multiplier").value_or(1) / root_of_head_dim(layer));
  set_rotary(layer);
}

void describe_granite_hybrid(Layer& layer) {
  auto& config = layer.config;
  require_attention_by(layer, "layer_types", false);
  config.ignore(
      {"mamba_conv_bias",
       "mamba_proj_bias",
       "mamba_chunk_size",
       "mamba_n_heads",
       "mamba_d_head",
       "layers_block_type"});
  set_heads(layer);
  set_biases(layer);
  layer.options.scale(config.number("attention_multiplier"));
  if (config.text("position_embedding_type") == "rope") {
    set_rotary(layer);
  } else {
    ignore_rotary(config);
  }
}

/// The layers of linear attention are left out.
void describe_minimax(Layer& layer) {
  auto& config = layer.config;
  require_attention_by(layer, "layer_types", layer.index % 2 == 0);
  config.ignore(
      {"attn_type_list",
       "full_attn_alpha_factor",
       "full_attn_beta_factor",
       "linear_attn_alpha_factor",
       "linear_attn_beta_factor"});
  set_heads(layer);
  layer.options.out_bias(false).window(config.integer("sliding_window"));
  set_rotary(layer);
}

/// Some layers attend to images alone.
void describe_mllama(Layer& layer) {
  auto& config = layer.config;
  constexpr auto* kCross = "cross_attention_layers";
  require_attention(
      layer,
      config.has(kCross)
          ? !config.has_element(kCross, layer.index)
          : layer.index < 3 || layer.index > 38 || (layer.index - 3) % 5 != 0);
  set_heads(layer);
  layer.options.out_bias(false);
  set_rotary(layer);
}

/// Without positions.
void describe_jamba(Layer& layer) {
  auto& config = layer.config;
  const auto period = config.integer("attn_layer_period").value_or(8);
  const auto offset = config.integer("attn_layer_offset").value_or(4);
  require_attention(layer, period > 0 && layer.index % period == offset);
  config.ignore({"mamba_conv_bias", "mamba_proj_bias", "layers_block_type"});
  set_heads(layer);
  layer.options.out_bias(false);
}

/// Without positions where the parameters say that theta is null.
void describe_olmo_hybrid(Layer& layer) {
  auto& config = layer.config;
  // In a model of few layers the last one has attention.
  const auto layers = config.required_integer("num_hidden_layers");
  require_attention_by(
      layer,
      "layer_types",
      !is_before_last_of(layer, 4) ||
          (layers < 4 && layer.index + 1 == layers));
  ignore_linear_attention(config);
  set_heads(layer);
  set_biases(layer);
  set_norm(
      layer, HeadNormOptions().scope(HeadNormScope::kAllHeads), "rms_norm_eps");
  const auto parameters = config.object("rope_parameters");
  const auto* theta = parameters.find("rope_theta");
  if (theta == nullptr || !theta->is_null()) {
    set_rotary(layer);
  } else {
    ignore_rotary(config);
  }
}

/// Without positions. Each layer is one of attention, Mamba or experts.
void describe_nemotron_h(Layer& layer) {
  auto& config = layer.config;
  const auto block = static_cast<size_t>(layer.index);
  // "M" is Mamba, "-" and "E" are others, in older configurations.
  constexpr auto* kPattern = "hybrid_override_pattern";
  const auto pattern = config.text(kPattern).value_or("");
  if (config.has("layer_types") || config.has("layers_block_type")) {
    require_attention_by(
        layer,
        config.has("layer_types") ? "layer_types" : "layers_block_type",
        false);
  } else {
    require_attention(layer, block < pattern.size() && pattern[block] == '*');
  }
  config.ignore(
      {"chunk_size",
       "conv_kernel",
       "layer_types",
       "layers_block_type",
       "mamba_head_dim",
       "mamba_num_heads",
       "mamba_proj_bias",
       "rescale_prenorm_residual",
       "use_bias",
       "use_conv_bias"});
  ignore_rotary(config);
  set_heads(layer);
  set_biases(layer);
}

/// Only layers with a window rotate; the layers of linear attention are left
/// out.
void describe_lara_mini(Layer& layer) {
  auto& config = layer.config;
  const auto place = layer.index % 5;
  const auto type =
      config.text_at("layer_types", layer.index)
          .value_or(
              place == 3                         ? "full_attention"
                  : place % 2 == 0 && place != 4 ? "linear_attention"
                                                 : "sliding_attention");
  require_attention(layer, type != "linear_attention");
  ignore_linear_attention(config);
  set_heads(layer);
  set_biases(layer);
  set_type(layer, type == "sliding_attention");
  set_norm(layer, HeadNormOptions(), "rms_norm_eps");
  if (layer.type == "sliding_attention") {
    set_rotary(layer);
  } else {
    ignore_rotary(config);
  }
}

void describe_lfm2(Layer& layer) {
  auto& config = layer.config;
  require_attention_by(
      layer,
      "layer_types",
      !config.has("full_attn_idxs") ||
          config.has_element("full_attn_idxs", layer.index));
  config.ignore(
      {"block_mlp_init_scale",
       "block_out_init_scale",
       "conv_bias",
       "full_attn_idxs",
       "num_heads",
       "use_expert_bias"});
  set_heads(layer);
  layer.options.out_bias(false);
  set_norm(layer, HeadNormOptions(), "norm_eps");
  layer.layout = WeightLayout::bart();
  rename_norms(layer, "q_layernorm", "k_layernorm");
  set_rotary(layer);
}

} // namespace torch_attention::weights::pretrained
