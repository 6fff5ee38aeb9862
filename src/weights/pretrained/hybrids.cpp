// Models in which only some layers have attention, or also other mixers.

#include <weights/pretrained/describe.h>

#include <check.h>
#include <format_text.h>

#include <cmath>
#include <optional>

namespace torch_attention::weights::pretrained {

namespace {

void require_attention(const Layer& layer, bool has_attention) {
  TORCH_ATTENTION_CHECK(
      has_attention,
      "layer {} of \"{}\" has no attention",
      layer.index,
      layer.config.path());
}

/// Requires attention according to a list of the types of layers. Without the
/// list, the layer has attention if `otherwise`.
void require_attention_by(Layer& layer, const char* field, bool otherwise) {
  const auto type = layer.config.text_at(field, layer.index);
  require_attention(
      layer,
      type ? *type == "full_attention" || *type == "attention" : otherwise);
}

void require_bamba_attention(Layer& layer) {
  require_attention(
      layer, layer.config.has_element("attn_layer_indices", layer.index));
}

/// A factor of keys before the rotary embedding is a factor of the scores.
void set_falcon_h1_scale(Layer& layer) {
  layer.options.scale(
      layer.config.number("key_multiplier").value_or(1) /
      root_of_head_dim(layer));
}

void require_attention_of_types(Layer& layer) {
  require_attention_by(layer, "layer_types", false);
}

void set_granite_hybrid_positions(Layer& layer) {
  if (layer.config.text("position_embedding_type") == "rope") {
    set_rotary(layer);
  } else {
    ignore_rotary(layer.config);
  }
}

/// Refuses layers of linear attention.
void require_minimax_attention(Layer& layer) {
  require_attention_by(layer, "layer_types", layer.index % 2 == 0);
}

/// Refuses layers that attend only to images.
void require_mllama_attention(Layer& layer) {
  auto& config = layer.config;
  constexpr auto* kCross = "cross_attention_layers";
  require_attention(
      layer,
      config.has(kCross)
          ? !config.has_element(kCross, layer.index)
          : layer.index < 3 || layer.index > 38 || (layer.index - 3) % 5 != 0);
}

void require_jamba_attention(Layer& layer) {
  auto& config = layer.config;
  const auto period = config.integer("attn_layer_period").value_or(8);
  const auto offset = config.integer("attn_layer_offset").value_or(4);
  require_attention(layer, period > 0 && layer.index % period == offset);
}

/// Layers with attention share the weights of the first of them. Its input is
/// hidden states and embeddings in one.
void describe_zamba(Layer& layer) {
  auto& config = layer.config;
  constexpr auto* kTypes = "layer_types";
  const auto has_attention = [&](int64_t index) {
    return config.text_at(kTypes, index) == "hybrid";
  };
  TORCH_ATTENTION_CHECK(
      config.has(kTypes),
      "expected \"{}\" in \"{}\", which has none",
      config.name_of(kTypes),
      config.path());
  require_attention(layer, has_attention(layer.index));
  int64_t first = 0;
  while (!has_attention(first)) {
    ++first;
  }
  layer.path = format_text("layers.{}.shared_transf.self_attn", first);
  const auto twice = 2 * layer.options.d_in();
  const auto heads = layer.options.num_heads();
  // The class takes 0 for none.
  const auto or_default = [](std::optional<int64_t> value, int64_t otherwise) {
    return value.value_or(0) == 0 ? otherwise : *value;
  };
  const auto size = or_default(config.integer("attention_hidden_size"), twice);
  const auto head_dim = or_default(config.integer("head_dim"), twice / heads);
  layer.options.d_in(size)
      .head_dim(head_dim)
      .num_kv_heads(config.integer("num_key_value_heads"))
      .scale(1 / std::sqrt(static_cast<double>(head_dim) / 2))
      .out_bias(false)
      .dropout(config.number("attention_dropout").value_or(0));
  // Those of Mamba, and which layers have attention without the list.
  config.ignore({"n_mamba_heads", "attn_layer_period", "attn_layer_offset"});
}

/// Layers of the types of `block_types` in turn.
void require_recurrent_gemma_attention(Layer& layer) {
  auto& config = layer.config;
  constexpr auto* kTypes = "block_types";
  const auto count = config.length(kTypes).value_or(0);
  TORCH_ATTENTION_CHECK(
      count > 0,
      "expected a list of types as \"{}\" of \"{}\"",
      kTypes,
      config.path());
  require_attention(
      layer, config.text_at(kTypes, layer.index % count) == "attention");
}

/// In a model with few layers, the last one has attention.
void require_olmo_hybrid_attention(Layer& layer) {
  const auto layers = layer.config.required_integer("num_hidden_layers");
  require_attention_by(
      layer,
      "layer_types",
      !is_before_last_of(layer, 4) ||
          (layers < 4 && layer.index + 1 == layers));
}

/// No rotary embedding if theta is null, in the parameters or, without one
/// there, beside them.
void set_olmo_hybrid_positions(Layer& layer) {
  constexpr auto* kTheta = "rope_theta";
  auto& config = layer.config;
  const auto newer = config.object("rope_parameters");
  const auto parameters =
      newer.fields().empty() ? config.object("rope_scaling") : newer;
  const auto* theta = parameters.find(kTheta);
  const bool is_null = theta == nullptr
      ? config.contains(kTheta) && !config.has(kTheta)
      : theta->is_null();
  if (is_null) {
    ignore_rotary(config);
  } else {
    set_rotary(layer);
  }
}

/// Each layer has either attention, Mamba or experts.
void require_nemotron_h_attention(Layer& layer) {
  auto& config = layer.config;
  const auto block = static_cast<size_t>(layer.index);
  // In older configurations: "*" for attention, "M" for Mamba, "-" and "E".
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
}

/// Refuses layers of linear attention. Only layers with a window have a rotary
/// embedding.
void set_lara_mini_types(Layer& layer) {
  const auto place = layer.index % 5;
  const auto type =
      layer.config.text_at("layer_types", layer.index)
          .value_or(
              place == 3                         ? "full_attention"
                  : place % 2 == 0 && place != 4 ? "linear_attention"
                                                 : "sliding_attention");
  require_attention(layer, type != "linear_attention");
  set_type(layer, type == "sliding_attention");
}

void require_lfm2_attention(Layer& layer) {
  auto& config = layer.config;
  require_attention_by(
      layer,
      "layer_types",
      !config.has("full_attn_idxs") ||
          config.has_element("full_attn_idxs", layer.index));
}

/// The other layers are convolutions.
void require_lfm3_attention(Layer& layer) {
  const auto place = layer.index % 4;
  const auto type =
      layer.config.text_at("layer_types", layer.index)
          .value_or(
              place == 2                           ? "full_attention"
                  : place == 0 && layer.index != 0 ? "sliding_attention"
                                                   : "conv");
  require_attention(layer, type != "conv");
  set_type(layer, type == "sliding_attention");
}

/// The other layers are convolutions.
void require_lfm3_vision_attention(Layer& layer) {
  constexpr auto* kTypes = "layer_types";
  const auto type = layer.config.text_at(kTypes, layer.index);
  require_attention(
      layer, type ? *type != "conv" : layer.index >= 2 && layer.index % 2 == 0);
}

void require_bridgetower_layer(Layer& layer) {
  auto& config = layer.config;
  const bool is_last =
      layer.index + 1 == config.required_integer("num_hidden_layers");
  require_attention(
      layer, !is_last || !config.flag("remove_last_layer").value_or(false));
}

/// The first and the last layer may be convolutions.
void require_repmixer_attention(Layer& layer) {
  auto& config = layer.config;
  const auto layers = config.required_integer("num_hidden_layers");
  const bool is_end = layer.index == 0 || layer.index + 1 == layers;
  require_attention(
      layer, !is_end || !config.flag("use_repmixer_blocks").value_or(true));
}

} // namespace

Describers hybrid_describers() {
  return {
      {"require_lfm3_attention", require_lfm3_attention},
      {"require_lfm3_vision_attention", require_lfm3_vision_attention},
      {"require_bridgetower_layer", require_bridgetower_layer},
      {"require_repmixer_attention", require_repmixer_attention},
      {"require_bamba_attention", require_bamba_attention},
      {"set_falcon_h1_scale", set_falcon_h1_scale},
      {"require_attention_of_types", require_attention_of_types},
      {"set_granite_hybrid_positions", set_granite_hybrid_positions},
      {"require_minimax_attention", require_minimax_attention},
      {"require_mllama_attention", require_mllama_attention},
      {"require_jamba_attention", require_jamba_attention},
      {"require_olmo_hybrid_attention", require_olmo_hybrid_attention},
      {"set_olmo_hybrid_positions", set_olmo_hybrid_positions},
      {"require_nemotron_h_attention", require_nemotron_h_attention},
      {"set_lara_mini_types", set_lara_mini_types},
      {"require_lfm2_attention", require_lfm2_attention},
      {"describe_zamba", describe_zamba},
      {"require_recurrent_gemma_attention", require_recurrent_gemma_attention},
  };
}

} // namespace torch_attention::weights::pretrained
