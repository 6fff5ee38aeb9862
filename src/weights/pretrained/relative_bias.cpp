#include <weights/pretrained/relative_bias.h>

#include <check.h>
#include <format_text.h>
#include <weights/pretrained/families.h>

#include <algorithm>
#include <map>
#include <vector>

namespace torch_attention::weights::pretrained {

namespace {

/// Where a model has the weights of its bias.
struct BiasPlace {
  /// The parts with a bias; the first is named in errors.
  std::vector<PretrainedPart> parts;
  /// The path of the attention with the weights; empty in models with the names
  /// of T5.
  std::string path = {};
  /// Whether each layer has its own bias, and not the first for all.
  bool is_of_layer = false;
  /// Whether the only part is a decoder.
  bool is_decoder = false;
};

const std::map<std::string, BiasPlace>& bias_places() {
  using Part = PretrainedPart;
  constexpr auto* kOfText = "layer.0.self_attention.attention";
  const std::vector both{Part::kEncoder, Part::kDecoder};
  static const std::map<std::string, BiasPlace> places{
      {"mpnet", {{Part::kAuto}, "encoder"}},
      {"mt5", {both}},
      {"pix2struct",
       {{Part::kAuto, Part::kText}, kOfText, false, /*is_decoder=*/true}},
      {"pix2struct_text_model",
       {{Part::kAuto}, kOfText, false, /*is_decoder=*/true}},
      {"pop2piano", {both}},
      {"switch_transformers", {both}},
      {"t5", {both}},
      {"udop", {{Part::kDecoder}}},
      {"umt5", {both, "", /*is_of_layer=*/true}},
  };
  return places;
}

/// Returns the place of a type. Throws c10::Error for types without a bias.
const BiasPlace& place_of(const std::string& type, const std::string& path) {
  const auto found = bias_places().find(type);
  if (found == bias_places().end()) {
    std::vector<std::string> types;
    for (const auto& [name, place] : bias_places()) {
      types.push_back(name);
    }
    const auto last = types.back();
    types.pop_back();
    TORCH_ATTENTION_CHECK(
        false,
        "expected a model with a bias by the distance of tokens, one of {} and "
        "{}, but got model_type \"{}\" in \"{}\"",
        fmt::join(types, ", "),
        last,
        type,
        path);
  }
  return found->second;
}

void check_part(
    const BiasPlace& place,
    PretrainedPart part,
    const std::string& path) {
  const auto& parts = place.parts;
  TORCH_ATTENTION_CHECK(
      std::find(parts.begin(), parts.end(), part) != parts.end(),
      "{}{}\"",
      parts.front() == PretrainedPart::kAuto
          ? "expected no part, but kAuto, of \""
          : parts.size() > 1
          ? "expected PretrainedPart::kEncoder or kDecoder as the part of \""
          : "expected PretrainedPart::kDecoder, whose bias is by the distance of "
            "tokens alone, as the part of \"",
      path);
}

} // namespace

DescribedRelativeBias describe_relative_bias(
    ModelConfig& config,
    PretrainedPart part,
    std::optional<int64_t> layer) {
  const auto type = config.text("model_type").value_or("none");
  const auto& place = place_of(type, config.path());
  check_part(place, part, config.path());
  TORCH_ATTENTION_CHECK(
      layer || !place.is_of_layer,
      "expected a layer, since each of model_type \"{}\" in \"{}\" has a "
      "bias of its own: relative_bias_from_pretrained(folder, layer, "
      "options)",
      type,
      config.path());
  constexpr int64_t kFirst = 0;
  const auto attention =
      describe_attention(config, {layer.value_or(kFirst), part});
  const bool is_decoder = place.is_decoder || part == PretrainedPart::kDecoder;
  auto own = type == "pix2struct" ? config.nested("text_config") : config;
  constexpr auto* kBuckets = "relative_attention_num_buckets";
  // MPNet's class finds the buckets of 32, whatever the size of its table.
  TORCH_ATTENTION_CHECK(
      type != "mpnet" || own.integer(kBuckets).value_or(32) == 32,
      "expected {} = 32 in \"{}\", but got {}",
      kBuckets,
      config.path(),
      own.integer(kBuckets).value_or(32));
  const auto options =
      RelativeBiasOptions(attention.options.num_heads())
          .num_buckets(own.integer(kBuckets).value_or(32))
          .max_distance(
              own.integer("relative_attention_max_distance").value_or(128))
          .bidirectional(!is_decoder);
  const auto path = !place.path.empty()
      ? place.path
      : format_text(
            "{}.block.{}.layer.0.SelfAttention",
            is_decoder ? "decoder" : "encoder",
            place.is_of_layer ? *layer : kFirst);
  return {type, options, path + ".relative_attention_bias"};
}

} // namespace torch_attention::weights::pretrained
