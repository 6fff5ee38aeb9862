#include <weights/pretrained/relative.h>

#include <check.h>
#include <format_text.h>
#include <weights/text.h>

#include <c10/util/Exception.h>

#include <algorithm>
#include <cmath>
#include <string>
#include <utility>
#include <vector>

// DeBERTa, whose scores add products of content and position.

namespace torch_attention::weights::pretrained {

namespace {

constexpr auto* kPositionTypes = "pos_att_type";

/// Returns the words between bars, in lower case and without spaces around
/// them, as the model's classes read texts such as "C2P | p2c".
std::vector<std::string> words_between_bars(const std::string& text) {
  std::vector<std::string> words;
  for (size_t begin = 0; begin <= text.size();) {
    const auto end = std::min(text.find('|', begin), text.size());
    auto word = text.substr(begin, end - begin);
    constexpr auto* kSpaces = " \t\n\r\f\v";
    word.erase(0, word.find_first_not_of(kSpaces));
    word.erase(word.find_last_not_of(kSpaces) + 1);
    words.push_back(in_lower_case(std::move(word)));
    begin = end + 1;
  }
  return words;
}

/// The elements of `pos_att_type`.
struct ProductTypes {
  bool content_to_position = false;
  bool position_to_content = false;
  int64_t count = 0;

  int64_t num_kinds() const {
    return static_cast<int64_t>(content_to_position) +
        static_cast<int64_t>(position_to_content);
  }
};

std::vector<std::string> elements_of_types(ModelConfig& config) {
  if (config.is_text(kPositionTypes)) {
    return words_between_bars(*config.text(kPositionTypes));
  }
  const auto length = config.length(kPositionTypes);
  TORCH_ATTENTION_CHECK(
      length || !config.has(kPositionTypes),
      "expected a text or a list of texts as \"{}\" of \"{}\"",
      kPositionTypes,
      config.path());
  std::vector<std::string> elements;
  for (int64_t i = 0; i < length.value_or(0); ++i) {
    elements.push_back(config.text_at(kPositionTypes, i).value_or(""));
  }
  return elements;
}

ProductTypes product_types_of(
    const ModelConfig& config,
    const std::vector<std::string>& elements) {
  ProductTypes types;
  for (const auto& element : elements) {
    TORCH_ATTENTION_CHECK(
        element == "c2p" || element == "p2c",
        "expected \"c2p\" and \"p2c\" in \"{}\" of \"{}\", but got \"{}\"",
        kPositionTypes,
        config.path(),
        element);
    types.content_to_position |= element == "c2p";
    types.position_to_content |= element == "p2c";
    ++types.count;
  }
  return types;
}

/// Returns whether scores add products with positions. Without them, attention
/// is that of other models, but for its scale.
bool adds_products(Layer& layer, const ProductTypes& types) {
  auto& config = layer.config;
  config.ignore(
      {"max_position_embeddings",
       "max_relative_positions",
       "position_biased_input",
       "position_buckets",
       "share_att_key",
       "norm_rel_ebd"});
  refuse_flag(layer, "talking_head", "products of heads are not computed");
  const auto size = layer.options.d_in();
  const auto heads = layer.options.num_heads();
  const auto of_head = config.integer("attention_head_size");
  TORCH_ATTENTION_CHECK(
      heads > 0 && size % heads == 0 &&
          of_head.value_or(size / heads) == size / heads,
      "expected heads of equal size, hidden_size / num_attention_heads, in "
      "\"{}\", but got {} heads of {} and hidden_size = {}",
      config.path(),
      heads,
      of_head ? std::to_string(*of_head) : "equal size",
      size);
  return config.flag("relative_attention").value_or(false) && types.count > 0;
}

/// Returns the options of the products, with the number of distances.
RelativeAttentionOptions disentangled_of(
    Layer& layer,
    const ProductTypes& types) {
  auto& config = layer.config;
  auto most = config.integer("max_relative_positions").value_or(-1);
  if (most < 1) {
    most = config.required_integer("max_position_embeddings");
  }
  return relative_of(layer, RelativeKind::kDisentangled)
      .max_distance(most)
      .content_to_position(types.content_to_position)
      .position_to_content(types.position_to_content);
}

double scale_of_products(const Layer& layer, int64_t count) {
  return 1 / std::sqrt(static_cast<double>(layer.head_dim() * count));
}

/// Ignores the norm after the output projection.
void add_norm_after(WeightLayout& layout) {
  for (const auto* part : {"weight", "bias", "gamma", "beta"}) {
    layout.outside(format_text("output.LayerNorm.{}", part));
  }
}

void describe_deberta(Layer& layer) {
  const auto types =
      product_types_of(layer.config, elements_of_types(layer.config));
  layer.options.key_bias(false);
  layer.layout = WeightLayout("deberta")
                     .interleave(
                         "self.in_proj.weight",
                         {"W_query.weight", "W_key.weight", "W_value.weight"},
                         layer.options.num_heads())
                     .rename("self.q_bias", "W_query.bias")
                     .rename("self.v_bias", "W_value.bias")
                     .rename("output.dense.weight", "out_proj.weight")
                     .rename("output.dense.bias", "out_proj.bias");
  add_norm_after(layer.layout);
  const bool adds = adds_products(layer, types);
  // The class counts the elements of the list, even without relative positions.
  if (!adds || types.count != types.num_kinds()) {
    layer.options.scale(scale_of_products(layer, 1 + types.count));
  }
  if (!adds) {
    return;
  }
  layer.relative = disentangled_of(layer, types).share_projections(false);
  layer.shared_embeddings = SharedEmbeddings{};
  layer.layout.rename("self.pos_proj.weight", "W_pos_key.weight")
      .rename("self.pos_q_proj.weight", "W_pos_query.weight")
      .rename("self.pos_q_proj.bias", "W_pos_query.bias")
      .zeros("relative_embeddings");
}

/// Returns what is done to the embeddings before layers project them.
SharedEmbeddings shared_embeddings_of(ModelConfig& config) {
  SharedEmbeddings shared;
  const auto norms = config.text("norm_rel_ebd").value_or("none");
  for (const auto& word : words_between_bars(norms)) {
    TORCH_ATTENTION_CHECK(
        word == "none" || word == "layer_norm",
        "expected \"none\" or \"layer_norm\" as \"norm_rel_ebd\" of \"{}\", "
        "but got \"{}\"",
        config.path(),
        norms);
    if (word == "layer_norm") {
      constexpr double kEps = 1e-7;
      shared.norm_eps = config.number("layer_norm_eps").value_or(kEps);
    }
  }
  return shared;
}

/// Describes DeBERTa v2 with these elements of `pos_att_type`.
void describe_second(Layer& layer, const std::vector<std::string>& elements) {
  auto& config = layer.config;
  const auto types = product_types_of(config, elements);
  layer.layout = linear_layers(
      "deberta_v2",
      "self.query_proj",
      "self.key_proj",
      "self.value_proj",
      "output.dense");
  add_norm_after(layer.layout);
  if (!adds_products(layer, types)) {
    layer.options.scale(scale_of_products(layer, 1 + types.num_kinds()));
    return;
  }
  const bool shares = config.flag("share_att_key").value_or(false);
  auto relative = disentangled_of(layer, types).share_projections(shares);
  const auto buckets = config.integer("position_buckets").value_or(-1);
  if (buckets > 0) {
    relative.buckets(buckets);
  }
  layer.relative = relative;
  layer.shared_embeddings = shared_embeddings_of(config);
  for (const std::string part : {".weight", ".bias"}) {
    layer.layout.rename("self.pos_key_proj" + part, "W_pos_key" + part)
        .rename("self.pos_query_proj" + part, "W_pos_query" + part);
  }
  layer.layout.zeros("relative_embeddings");
}

void describe_deberta_v2(Layer& layer) {
  describe_second(layer, elements_of_types(layer.config));
}

/// SEW-D, whose class splits no text, and has both products by default.
void describe_sew_d(Layer& layer) {
  auto& config = layer.config;
  TORCH_ATTENTION_CHECK(
      !config.is_text(kPositionTypes),
      "expected a list of texts as \"{}\" of \"{}\", but got a text",
      kPositionTypes,
      config.path());
  describe_second(
      layer,
      config.contains(kPositionTypes) ? elements_of_types(config)
                                      : std::vector<std::string>{"p2c", "c2p"});
}

} // namespace

Describers disentangled_describers() {
  return {
      {"describe_deberta", describe_deberta},
      {"describe_deberta_v2", describe_deberta_v2},
      {"describe_sew_d", describe_sew_d},
  };
}

} // namespace torch_attention::weights::pretrained
