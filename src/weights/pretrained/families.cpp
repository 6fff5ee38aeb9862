#include <weights/pretrained/families.h>

#include <check.h>
#include <format_text.h>
#include <weights/nearest.h>
#include <weights/pretrained/describe.h>
#include <weights/pretrained/inner.h>
#include <weights/pretrained/latent.h>
#include <weights/pretrained/models_file.h>
#include <weights/pretrained/multimodal.h>
#include <weights/pretrained/pairs.h>
#include <weights/pretrained/relative.h>
#include <weights/pretrained/stages.h>
#include <weights/text.h>

#include <c10/util/Exception.h>

#include <algorithm>
#include <numeric>
#include <optional>
#include <string>
#include <utility>

namespace torch_attention::weights::pretrained {

namespace {

std::string type_of(ModelConfig& config) {
  const auto type = config.text("model_type");
  TORCH_ATTENTION_CHECK(
      type.has_value(),
      "expected \"model_type\" in \"{}\", which has none",
      config.path());
  return *type;
}

/// A family, and the requested part.
struct Found {
  std::string type;
  const Family& family;
  PretrainedPart part;

  bool is_decoder() const {
    return part == PretrainedPart::kDecoder;
  }

  const SizeNames& names() const {
    return is_decoder()                  ? family.decoder_names
        : part == PretrainedPart::kAudio ? family.audio_names
                                         : family.names;
  }
};

/// Steps may set the path of entries without one, such as ALBERT's.
bool has_self(const Family& family) {
  return !family.path.empty() || family.cross_path.empty();
}

bool has_cross(ModelConfig& config, const Family& family) {
  return !family.cross_path.empty() &&
      (family.cross_flag.empty() ||
       config.flag(family.cross_flag).value_or(false));
}

Found find_family(
    ModelConfig& config,
    const std::string& type,
    PretrainedPart part,
    bool is_cross) {
  const auto* found = family_of(type);
  if (found == nullptr) {
    C10_THROW_ERROR(Error, why_refused(config.path(), type));
  }
  const auto& family = *found;
  config.set_defaults_of(type);
  TORCH_ATTENTION_CHECK(
      !is_cross || has_cross(config, family),
      "model_type \"{}\" of \"{}\" has no cross-attention",
      type,
      config.path());
  if (is_cross && family.has_parts()) {
    part = PretrainedPart::kDecoder;
  }
  const bool is_stack = part == PretrainedPart::kEncoder ||
      part == PretrainedPart::kDecoder ||
      (part == PretrainedPart::kAudio && !family.audio_path.empty());
  TORCH_ATTENTION_CHECK(
      family.has_parts() ? is_stack : part == PretrainedPart::kAuto,
      "model_type \"{}\" of \"{}\" has {}, but part is {}",
      type,
      config.path(),
      family.has_parts() ? "an encoder and a decoder: give "
                           "PretrainedPart::kEncoder or kDecoder"
                         : "no parts",
      name_of(part));
  return {type, family, part};
}

int64_t layers_of(ModelConfig& config, const Found& found) {
  const auto& family = found.family;
  if (family.layer_count > 0) {
    return family.layer_count;
  }
  if (family.stages.exist()) {
    return count_stage_layers(config, family.stages);
  }
  const auto& field = found.names().layers;
  // Nemotron-H has only a list of the layers' types.
  if (const auto types = config.length("layers_block_type")) {
    return *types;
  }
  // A list of their types counts them, too.
  if (ends_with(field, "_types")) {
    if (const auto types = config.length(field)) {
      return *types;
    }
  }
  // By default, T5's decoder has as many layers as its encoder.
  const auto layers = config.integer(field);
  const auto& more = found.names().more_layers;
  return (layers ? *layers : config.required_integer(family.names.layers)) -
      found.names().missing_layers +
      (more.empty() ? 0 : config.required_integer(more));
}

int64_t heads_of(
    ModelConfig& config,
    const Found& found,
    int64_t size,
    int64_t stage) {
  const auto of_size = found.family.head_size;
  return of_size > 0
      ? size / of_size
      : size_of_stage(config, found.family.stages, found.names().heads, stage);
}

/// Throws c10::Error if `layer_types` differs from the type that is computed,
/// in families that do not read this field.
void check_type(const Layer& layer) {
  auto& config = layer.config;
  if (config.was_read("layer_types")) {
    return;
  }
  const auto of_layer = config.text_at("layer_types", layer.index);
  const auto* computed =
      layer.options.window() ? "sliding_attention" : "full_attention";
  TORCH_ATTENTION_CHECK(
      !of_layer || of_layer == computed,
      "expected {} as \"layer_types\" of \"{}\", whose model has it in "
      "all layers, but got \"{}\" for layer {}",
      computed,
      config.path(),
      of_layer.value_or(""),
      layer.index);
}

/// Replaces the first `{}` of a path by a number.
std::string with_number(std::string path, int64_t number) {
  const auto place = path.find("{}");
  return place == std::string::npos
      ? path
      : path.replace(place, 2, std::to_string(number));
}

std::string with_layer(
    const std::string& path,
    const StageNames& stages,
    StagePlace place) {
  return with_number(
      stages.exist() ? with_number(path, stages.first + place.stage) : path,
      place.layer);
}

/// Returns the configuration of a stack, for `has_own_configs`.
ModelConfig config_of_stack(ModelConfig& config, const Found& found) {
  auto inner = config.nested(found.is_decoder() ? "decoder" : "encoder");
  inner.set_defaults_of(found.type);
  return inner;
}

/// Returns the layer with its sizes, before the steps of its family.
Layer layer_of(
    ModelConfig& config,
    const Found& found,
    const Wanted& wanted,
    StagePlace place) {
  const auto& family = found.family;
  const auto& names = found.names();
  auto size = size_of_stage(config, family.stages, names.size, place.stage);
  if (family.stages.doubles) {
    // Larger numbers would overflow.
    constexpr int64_t kMostStages = 16;
    TORCH_ATTENTION_CHECK(
        place.stage < kMostStages && size < kUnlimited,
        "expected at most {} stages in \"{}\", each of twice the size of the "
        "one before, and {} < {}",
        kMostStages,
        config.path(),
        config.name_of(names.size),
        kUnlimited);
    size <<= place.stage;
  }
  const auto heads = heads_of(config, found, size, place.stage);
  TORCH_ATTENTION_CHECK(
      size > 0 && heads > 0,
      "expected {} > 0 and {} > 0 in \"{}\", but got {} and {}",
      config.name_of(names.size),
      config.name_of(names.heads),
      config.path(),
      size,
      heads);
  Layer layer{
      config,
      wanted.layer,
      found.part,
      wanted.is_cross,
      MultiHeadAttentionOptions(
          size, size, config.integer(names.length).value_or(kUnlimited), heads)
          .register_mask(false)};
  layer.index_in_stage = place.layer;
  layer.path = wanted.is_cross               ? family.cross_path
      : found.is_decoder()                   ? family.decoder_path
      : found.part == PretrainedPart::kAudio ? family.audio_path
                                             : family.path;
  return layer;
}

DescribedAttention describe(
    ModelConfig& config,
    const Found& found,
    const Wanted& wanted) {
  const auto& family = found.family;
  TORCH_ATTENTION_CHECK(
      wanted.is_cross || has_self(family),
      "model_type \"{}\" of \"{}\" attends to a context that each call gives: "
      "cross_attention_from_pretrained loads it",
      found.type,
      config.path());
  config.check_layer(wanted.layer, layers_of(config, found));
  config.take_layer(wanted.layer, found.type);
  const auto place = place_of_layer(config, family.stages, wanted.layer);
  auto layer = layer_of(config, found, wanted, place);
  describe_as(layer, found.type);
  check_type(layer);
  TORCH_ATTENTION_CHECK(
      config.flag("is_causal").value_or(true) || !layer.options.causal(),
      "expected is_causal = true in \"{}\", whose model_type \"{}\" is "
      "causal, but got false",
      config.path(),
      found.type);
  config.check_no_more(found.type);
  std::vector<Place> places{
      {with_layer(layer.path, family.stages, place), layer.layout}};
  for (const auto& [path, layout] : layer.others) {
    places.push_back({with_layer(path, family.stages, place), layout});
  }
  return {
      found.type,
      layer.options,
      relative_options(layer),
      layer.longformer,
      std::move(places),
      PretrainedPart::kAuto,
      /*within=*/"",
      /*root=*/"",
      layer.needs_bias,
      layer.bias_of_caller,
      layer.needs_rotary,
      layer.image_rotary,
      layer.d_context,
      layer.has_image_windows,
      /*has_image_blocks=*/false,
      layer.windows,
      layer.shared_embeddings,
      layer.stored_rotary};
}

DescribedAttention describe(
    ModelConfig& config,
    const std::string& type,
    const Wanted& wanted) {
  const auto found = find_family(config, type, wanted.part, wanted.is_cross);
  if (!found.family.has_own_configs) {
    return describe(config, found, wanted);
  }
  auto inner = config_of_stack(config, found);
  config.check_no_more(type);
  return describe(inner, found, wanted);
}

/// Returns a part of a model that consists of other models; none for all other
/// models.
std::optional<ModelPart> outer_part(
    ModelConfig& config,
    const std::string& type,
    PretrainedPart part) {
  if (const auto* model = find_multimodal(type)) {
    return part_of(config, *model, part);
  }
  if (const auto* pair = find_pair(type)) {
    return stack_of(config, *pair, part);
  }
  if (const auto* inner = find_inner(type)) {
    return model_in(config, *inner, part);
  }
  return std::nullopt;
}

/// Returns the part of a model, or the model in this part: SAM 3's image
/// encoder is a model around another one.
std::optional<ModelPart> inner_model(
    ModelConfig& config,
    const std::string& type,
    PretrainedPart part) {
  auto found = outer_part(config, type, part);
  while (found) {
    const auto* inner = find_inner(found->type);
    if (inner == nullptr) {
      break;
    }
    auto model = model_in(found->config, *inner, PretrainedPart::kAuto);
    model.part = found->part;
    found.emplace(std::move(model));
  }
  return found;
}

/// Returns the requested part of the inner model, if it has parts itself:
/// Donut's decoder is the decoder of MBart.
PretrainedPart part_in(const ModelPart& inner) {
  const auto* found = family_of(inner.type);
  return found != nullptr && found->has_parts() ? inner.part
                                                : PretrainedPart::kAuto;
}

/// Sets the options for tokens of images that see each other.
void set_blocks(DescribedAttention& described, ImageBlocks blocks) {
  auto& options = described.options;
  const bool reads = options.block_scope() != BlockScope::kNone;
  described.has_image_blocks =
      blocks != ImageBlocks::kNone && reads && options.causal();
  if (blocks == ImageBlocks::kAll) {
    // As in PaliGemma 2, the only such model with windows.
    options.needs_blocks(true).block_scope(BlockScope::kWindow);
  }
}

} // namespace

std::string why_refused(const std::string& path, const std::string& type) {
  if (is_latent_type(type)) {
    return format_text(
        "the attention of model_type \"{}\" of \"{}\" is latent: "
        "latent_attention_from_pretrained loads it",
        type,
        path);
  }
  const auto entry = model_entries().find(type);
  if (entry != model_entries().end() && !entry->second.refused.empty()) {
    return format_text(
        "the attention of model_type \"{}\" of \"{}\" is not computed: {}",
        type,
        path,
        entry->second.refused);
  }
  const auto known = known_model_types();
  const auto nearest = NearestText(known).find(type);
  return format_text(
      "model_type \"{}\" of \"{}\" is not known{}; {} are, which "
      "pretrained_model_types() lists. For another model give "
      "MultiHeadAttentionOptions yourself, and load its weights with "
      "load_weights",
      type,
      path,
      nearest ? format_text(", the nearest is \"{}\"", *nearest) : "",
      known.size());
}

std::vector<std::string> known_model_types() {
  auto types = multimodal_types();
  for (const auto& others : {pair_types(), inner_types()}) {
    types.insert(types.end(), others.begin(), others.end());
  }
  for (const auto& [type, entry] : model_entries()) {
    if (entry.family) {
      types.push_back(type);
    }
  }
  std::sort(types.begin(), types.end());
  // Phi-4 has one type for the multimodal model and its text model, Moonshine
  // Streaming for the model and its decoder.
  types.erase(std::unique(types.begin(), types.end()), types.end());
  return types;
}

std::vector<PretrainedPart> parts_of(ModelConfig& config) {
  const auto type = type_of(config);
  if (const auto* model = find_multimodal(type)) {
    return model->parts();
  }
  if (const auto* pair = find_pair(type); pair != nullptr) {
    if (!pair->encoder) {
      return {PretrainedPart::kDecoder};
    }
    return {PretrainedPart::kEncoder, PretrainedPart::kDecoder};
  }
  const auto* inner = find_inner(type);
  const auto* found = family_of(inner == nullptr ? type : inner->type);
  if (found == nullptr || !found->has_parts()) {
    return {PretrainedPart::kAuto};
  }
  std::vector parts{PretrainedPart::kEncoder, PretrainedPart::kDecoder};
  if (!found->audio_path.empty()) {
    parts.push_back(PretrainedPart::kAudio);
  }
  return parts;
}

std::string type_of_part(ModelConfig& config, PretrainedPart part) {
  const auto type = type_of(config);
  const auto inner = inner_model(config, type, part);
  return inner ? inner->type : type;
}

bool has_self_attention(ModelConfig& config, PretrainedPart part) {
  const auto* found = family_of(type_of_part(config, part));
  return found == nullptr || has_self(*found);
}

bool has_cross_attention(ModelConfig& config, PretrainedPart part) {
  const auto type = type_of(config);
  if (part == PretrainedPart::kEncoder || part == PretrainedPart::kAudio) {
    return false;
  }
  auto inner = inner_model(config, type, part);
  const auto* found = family_of(inner ? inner->type : type);
  return found != nullptr && has_cross(inner ? inner->config : config, *found);
}

int64_t count_layers(ModelConfig& config, PretrainedPart part) {
  const auto type = type_of(config);
  if (auto inner = inner_model(config, type, part)) {
    return layers_of(
        inner->config,
        find_family(
            inner->config, inner->type, part_in(*inner), /*is_cross=*/false));
  }
  const auto found = find_family(config, type, part, false);
  if (!found.family.has_own_configs) {
    return layers_of(config, found);
  }
  auto inner = config_of_stack(config, found);
  return layers_of(inner, found);
}

DescribedAttention describe_attention(
    ModelConfig& config,
    const Wanted& wanted) {
  const auto type = type_of(config);
  const bool is_decoders = wanted.is_cross && find_pair(type) != nullptr;
  if (auto inner = inner_model(
          config, type, is_decoders ? PretrainedPart::kDecoder : wanted.part)) {
    if (inner->blocks == ImageBlocks::kAll) {
      // The multimodal model makes the mask and ignores this field.
      inner->config.forget("use_bidirectional_attention");
    }
    auto described = describe(
        inner->config,
        inner->type,
        {wanted.layer, part_in(*inner), wanted.is_cross});
    described.part = inner->part;
    described.within = inner->within;
    described.root = inner->root;
    // The multimodal model makes a causal mask and ignores this field.
    TORCH_ATTENTION_CHECK(
        inner->type != "gemma3_text" || described.options.causal(),
        "expected use_bidirectional_attention = false in \"{}\", the text "
        "of a model that sees images",
        inner->config.path());
    set_blocks(described, inner->blocks);
    return described;
  }
  return describe(config, type, wanted);
}

} // namespace torch_attention::weights::pretrained
