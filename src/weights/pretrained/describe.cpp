#include <weights/pretrained/describe.h>

#include <check.h>

#include <cmath>

namespace torch_attention::weights::pretrained {

double root_of_head_dim(const Layer& layer) {
  return std::sqrt(static_cast<double>(layer.head_dim()));
}

void set_heads(Layer& layer) {
  auto& config = layer.config;
  layer.options.num_kv_heads(config.integer("num_key_value_heads"))
      .head_dim(config.integer("head_dim"))
      .dropout(config.number("attention_dropout").value_or(0));
}

void set_biases(Layer& layer, const char* field) {
  const bool bias = layer.config.flag(field).value_or(false);
  layer.options.qkv_bias(bias).out_bias(bias);
}

void set_type(Layer& layer, bool has_window) {
  const auto type = layer.config.text_at("layer_types", layer.index);
  layer.type =
      type.value_or(has_window ? "sliding_attention" : "full_attention");
  TORCH_ATTENTION_CHECK(
      layer.type == "full_attention" || layer.type == "sliding_attention",
      "expected full_attention or sliding_attention as \"layer_types\" of "
      "\"{}\", but got \"{}\" for layer {}",
      layer.config.path(),
      layer.type,
      layer.index);
  const auto window = layer.config.integer("sliding_window");
  if (layer.type == "sliding_attention") {
    layer.options.window(window);
  }
}

void set_type_by_turn(Layer& layer, int64_t count) {
  // The model does not use them.
  layer.config.ignore({"sliding_window_pattern", "_sliding_window_pattern"});
  set_type(layer, is_before_last_of(layer, count));
}

void set_type_by_pattern(Layer& layer, int64_t count) {
  layer.config.ignore("_sliding_window_pattern");
  const auto pattern =
      layer.config.integer("sliding_window_pattern").value_or(count);
  TORCH_ATTENTION_CHECK(
      pattern > 0,
      "expected sliding_window_pattern > 0 in \"{}\", but got {}",
      layer.config.path(),
      pattern);
  set_type(layer, is_before_last_of(layer, pattern));
}

void make_last_full(Layer& layer) {
  const auto layers = layer.config.required_integer("num_hidden_layers");
  if (layer.index + 1 == layers) {
    layer.type = "full_attention";
    layer.options.window(std::nullopt);
  }
}

void see_both_sides(Layer& layer) {
  layer.options.causal(false);
  if (const auto window = layer.options.window()) {
    const auto side = *window / 2;
    layer.options.window(side + 1).window_after(side);
  }
}

void see_radius(Layer& layer) {
  layer.options.causal(false);
  if (const auto radius = layer.options.window()) {
    layer.options.window(*radius + 1).window_after(radius);
  }
}

int64_t positive(ModelConfig& config, const char* field, int64_t otherwise) {
  const auto value = config.integer(field).value_or(otherwise);
  TORCH_ATTENTION_CHECK(
      value > 0,
      "expected {} > 0 in \"{}\", but got {}",
      field,
      config.path(),
      value);
  return value;
}

bool is_before_last_of(const Layer& layer, int64_t count) {
  TORCH_ATTENTION_CHECK(
      count > 0,
      "expected a positive number of layers in each turn of \"{}\", but got {}",
      layer.config.path(),
      count);
  return (layer.index + 1) % count != 0;
}

namespace {

/// Removes the sections of time, height and width from the parameters of the
/// rotary embedding: for text all three positions are equal.
void drop_sections(Layer& layer) {
  for (const std::string object : {"rope_parameters", "rope_scaling"}) {
    layer.config.drop(object, "mrope_section");
    // HunyuanOCR's files have this name for it.
    layer.config.drop(object, "xdrope_section");
    layer.config.drop(object, "mrope_interleaved");
    // Released files have this name for the default type.
    for (const std::string field : {"type", "rope_type"}) {
      if (layer.config.object(object).get(field).as_text() == "mrope") {
        layer.config.drop(object, field);
      }
    }
  }
}

} // namespace

void set_rotary(Layer& layer, const RotaryRules& rules, RotaryPairing pairing) {
  drop_sections(layer);
  layer.options.rotary(
      rotary_of(layer.config, layer.type, layer.head_dim(), rules)
          .pairing(pairing));
}

void set_rotary_of_types(Layer& layer) {
  RotaryRules rules;
  rules.needs_types = true;
  set_rotary(layer, rules);
}

RotaryRules with_partial(double share) {
  RotaryRules rules;
  rules.partial = share;
  return rules;
}

void set_norm(Layer& layer, HeadNormOptions norm, const char* eps) {
  layer.options.qk_norm(norm.eps(layer.config.number(eps).value_or(1e-6)));
}

void refuse_flag(Layer& layer, const char* field, const char* what) {
  TORCH_ATTENTION_CHECK(
      !layer.config.flag(field).value_or(false),
      "expected {} = false in \"{}\": {}",
      field,
      layer.config.path(),
      what);
}

void refuse_stack(
    const Layer& layer,
    const std::string& refused,
    const std::string& why) {
  TORCH_INTERNAL_ASSERT(
      refused == "encoder" || refused == "decoder" || refused == "cross",
      "models.json has the unknown stack ",
      refused);
  const bool is_decoder = layer.part == PretrainedPart::kDecoder;
  const bool is_refused = refused == "encoder" ? !is_decoder
      : refused == "decoder"                   ? is_decoder
                                               : layer.is_cross;
  TORCH_ATTENTION_CHECK(
      !is_refused,
      "the {} of \"{}\" is not computed: {}",
      layer.is_cross   ? "cross-attention"
          : is_decoder ? "decoder's attention"
                       : "encoder's attention",
      layer.config.path(),
      why);
}

WeightLayout linear_layers(
    const std::string& name,
    const std::string& query,
    const std::string& key,
    const std::string& value,
    const std::string& out) {
  WeightLayout layout(name);
  for (const std::string part : {".weight", ".bias"}) {
    layout.rename(query + part, "W_query" + part)
        .rename(key + part, "W_key" + part)
        .rename(value + part, "W_value" + part)
        .rename(out + part, "out_proj" + part);
  }
  return layout;
}

WeightLayout joined_layout(
    const std::string& name,
    const std::string& joined,
    const std::string& out) {
  WeightLayout layout(name);
  for (const std::string part : {".weight", ".bias"}) {
    layout
        .split(
            joined + part, {"W_query" + part, "W_key" + part, "W_value" + part})
        .rename(out + part, "out_proj" + part);
  }
  return layout;
}

void add_names_of_diffusers(Layer& layer) {
  layer.layout.rename("to_q.weight", "W_query.weight")
      .rename("to_k.weight", "W_key.weight")
      .rename("to_v.weight", "W_value.weight")
      .rename("to_out.weight", "out_proj.weight")
      .rename("norm_q.weight", "q_norm.weight")
      .rename("norm_k.weight", "k_norm.weight");
  rename_norms(layer, "q_norm", "k_norm");
}

void rename_norms(
    Layer& layer,
    const std::string& query,
    const std::string& key) {
  for (const std::string part : {".weight", ".bias"}) {
    layer.layout.rename(query + part, "q_norm" + part)
        .rename(key + part, "k_norm" + part);
  }
}

std::string positions_of(Layer& layer) {
  return layer.config.text("position_embedding_type").value_or("absolute");
}

void check_absolute(Layer& layer, const std::string& positions) {
  TORCH_ATTENTION_CHECK(
      positions == "absolute",
      "expected absolute as \"position_embedding_type\" of \"{}\", but got "
      "\"{}\", which adds to the scores what is not read",
      layer.config.path(),
      positions);
}

} // namespace torch_attention::weights::pretrained
