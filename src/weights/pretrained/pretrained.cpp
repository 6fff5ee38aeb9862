#include <torch_attention/weights/pretrained.h>

#include <check.h>
#include <error_message.h>
#include <format_text.h>
#include <torch_attention/weights/load.h>
#include <torch_attention/weights/read.h>
#include <undrawn_weights.h>
#include <weights/folder.h>
#include <weights/pretrained/adapter.h>
#include <weights/pretrained/families.h>
#include <weights/pretrained/latent.h>
#include <weights/pretrained/multimodal.h>
#include <weights/pretrained/quantized.h>
#include <weights/pretrained/relative_bias.h>
#include <weights/read.h>
#include <weights/select.h>
#include <weights/text.h>

#include <c10/util/Exception.h>

#include <algorithm>
#include <array>
#include <exception>
#include <optional>
#include <ostream>
#include <set>
#include <string_view>

namespace torch_attention {

using namespace weights;
using namespace weights::pretrained;

namespace {

template <typename Words>
bool has_word(const std::string& path, const Words& words) {
  return std::any_of(words.begin(), words.end(), [&](std::string_view word) {
    return path.find(word) != std::string::npos;
  });
}

/// Returns whether a path can belong to this part, by the words in it.
bool can_be_part(const std::string& path, PretrainedPart part) {
  constexpr std::array<std::string_view, 5> kOfVision{
      "vision", "visual", "video", "image", "vit."};
  constexpr std::array<std::string_view, 3> kOfAudio{
      "audio", "speech", "sound"};
  const bool is_vision = has_word(path, kOfVision);
  const bool is_audio = has_word(path, kOfAudio);
  return part == PretrainedPart::kVision ? is_vision
      : part == PretrainedPart::kAudio   ? is_audio
      : part == PretrainedPart::kText    ? !is_vision && !is_audio
                                         : true;
}

/// Where a part of a model is in a file.
struct Where {
  PretrainedPart part = PretrainedPart::kAuto;
  /// A substring and the beginning of its paths.
  std::string within = {};
  std::string root = {};
};

/// Returns the paths that end with `path` in a file with these keys.
std::set<std::string> paths_ending_with(
    const std::vector<std::string>& keys,
    const std::string& path,
    const Where& where) {
  std::set<std::string> found;
  const auto inner = path + ".";
  for (const auto& key : keys) {
    const auto at = key.find(inner);
    const bool is_there =
        at == 0 || (at != std::string::npos && key[at - 1] == '.');
    const bool is_below =
        starts_with(key, where.root) || starts_with(key, "model." + where.root);
    if (is_there && is_below) {
      found.insert(key.substr(0, at + path.size()));
    }
  }
  // A file with only one part may not name it.
  std::set<std::string> of_part;
  for (const auto& each : found) {
    if (can_be_part(each, where.part) &&
        each.find(where.within) != std::string::npos) {
      of_part.insert(each);
    }
  }
  return found.size() > 1 ? of_part : found;
}

/// Returns the path that ends with `path` in a file with these keys, if there
/// is one. Throws c10::Error if there are several.
std::optional<std::string> find_path(
    const std::vector<std::string>& keys,
    const std::string& path,
    const Where& where,
    const std::string& file) {
  const auto found = paths_ending_with(keys, path, where);
  TORCH_ATTENTION_CHECK(
      found.size() <= 1,
      "expected one \"{}\" in \"{}\", which has {}",
      path,
      file,
      quoted_list({found.begin(), found.end()}));
  return found.empty() ? std::nullopt : std::optional(*found.begin());
}

[[noreturn]] void throw_no_path(
    const std::vector<std::string>& keys,
    const std::string& path,
    const std::string& file) {
  TORCH_ATTENTION_CHECK(
      false,
      "expected keys of \"{}\" in \"{}\", which has attention at {}",
      path,
      file,
      quoted_list(attention_paths(keys)));
}

/// Returns the full path and the layout of the attention in a file with these
/// keys.
Place find_place(
    const std::vector<std::string>& keys,
    const DescribedAttention& described,
    const std::string& file) {
  const Where where{described.part, described.within, described.root};
  for (const auto& place : described.places) {
    if (auto found = find_path(keys, place.path, where, file)) {
      return {std::move(*found), place.layout};
    }
  }
  throw_no_path(keys, described.places.front().path, file);
}

/// Where the weights of a module are.
struct WeightsOfModel {
  std::string config;
  std::string model_type;
  std::string file;
  Place place;
};

/// A layer's description, and where its weights are.
struct Located {
  WeightsOfModel weights;
  DescribedAttention described;
};

/// Returns the file of weights that the configuration names, or that the folder
/// contains.
std::string weight_file_of(const std::string& folder, ModelConfig& config) {
  constexpr auto* kField = "transformers_weights";
  const auto name = config.text(kField);
  if (!name) {
    return find_weight_file(folder);
  }
  TORCH_ATTENTION_CHECK(
      name->find('/') == std::string::npos &&
          (ends_with(*name, ".safetensors") ||
           ends_with(*name, ".safetensors.index.json")),
      "expected a safetensors file in the folder as \"{}\" of \"{}\", but "
      "got \"{}\"",
      kField,
      config.path(),
      *name);
  return file_in(folder, *name);
}

/// Finds a module whose path ends with `path`, with the module's own keys.
WeightsOfModel locate_path(
    const std::string& folder,
    ModelConfig& config,
    const std::string& model_type,
    const std::string& path) {
  auto file = weight_file_of(folder, config);
  const auto weights = read_weight_file(file);
  const auto keys = whole_keys(weights);
  auto found = find_path(keys, path, {}, file);
  if (!found) {
    throw_no_path(keys, path, file);
  }
  check_not_quantized(config, weights, *found);
  return {
      config.path(),
      model_type,
      std::move(file),
      {std::move(*found), WeightLayout::automatic()}};
}

Located locate(
    const std::string& folder,
    const Wanted& wanted,
    const PretrainedOptions& options) {
  ModelConfig config(folder);
  auto described = describe_attention(config, wanted);
  TORCH_ATTENTION_CHECK(
      !described.needs_bias || options.bias_by_caller(),
      "model_type \"{}\" of \"{}\" adds a bias by the distance of tokens to "
      "the scores, which is not computed: with "
      "PretrainedOptions().bias_by_caller(true) the layer is loaded, and "
      "each call needs the bias, as ForwardOptions().bias",
      described.model_type,
      config.path());
  TORCH_ATTENTION_CHECK(
      !described.needs_rotary || options.rotary_by_caller(),
      "model_type \"{}\" of \"{}\" rotates by places in two dimensions, "
      "which are not computed: with "
      "PretrainedOptions().rotary_by_caller(true) the layer is loaded, and "
      "each call needs ForwardOptions().rotary_cos and rotary_sin, as "
      "rotary_from_pretrained makes them",
      described.model_type,
      config.path());
  auto file = weight_file_of(folder, config);
  const auto weights = read_weight_file(file);
  auto place = find_place(whole_keys(weights), described, file);
  check_not_quantized(config, weights, place.path);
  return {
      {config.path(), described.model_type, std::move(file), std::move(place)},
      std::move(described)};
}

/// Makes a module of these options, and fills it with the layer's weights.
template <typename Holder, typename Options>
Holder fill(
    const Options& its_options,
    const WeightsOfModel& weights,
    int64_t layer,
    const PretrainedOptions& options) {
  auto attention = [&] {
    const UndrawnWeights undrawn;
    return Holder(its_options);
  }();
  attention->eval();
  const auto report = load_weights(
      *attention,
      weights.file,
      LoadOptions()
          .prefix(weights.place.path)
          .layout(weights.place.layout)
          .adapter(options.adapter())
          .dtype(options.dtype())
          .device(options.device()));
  if (options.log() != nullptr) {
    *options.log() << escaped(weights.config) << ": layer " << layer << " of "
                   << escaped(weights.model_type) << "\n"
                   << attention << "\n"
                   << report;
  }
  return attention;
}

CrossAttentionOptions cross_options(const DescribedAttention& described) {
  const auto& options = described.options;
  return CrossAttentionOptions(
             options.d_in(),
             described.d_context.value_or(options.d_in()),
             options.d_out(),
             options.num_heads())
      .dropout(options.dropout())
      .qkv_bias(options.qkv_bias())
      .query_bias(options.query_bias())
      .key_bias(options.key_bias())
      .value_bias(options.value_bias())
      .out_bias(options.out_bias())
      .num_kv_heads(options.num_kv_heads())
      .head_dim(options.head_dim())
      .rule(options.rule().without_positions());
}

/// Calls `run`, and adds the name of the function to its errors.
template <typename Run>
auto named(
    const char* function,
    const std::string& path,
    int64_t layer,
    const Run& run) {
  try {
    return run();
  } catch (const std::exception& error) {
    throw_printable(format_text(
        "{}(\"{}\", {}): {}",
        function,
        escaped(path),
        layer,
        error_message(error)));
  }
}

RelativeBias load_relative_bias(
    const std::string& folder,
    std::optional<int64_t> layer,
    const PretrainedOptions& options) {
  const auto shown = layer.value_or(0);
  return named("relative_bias_from_pretrained", folder, shown, [&] {
    check_no_adapter(folder, options.adapter());
    ModelConfig config(folder);
    const auto described =
        describe_relative_bias(config, options.part(), layer);
    return fill<RelativeBias>(
        described.options,
        locate_path(folder, config, described.model_type, described.path),
        shown,
        options);
  });
}

/// Returns the learned angles of a token: the tensor `name` in the file.
torch::Tensor learned_angles(
    const std::string& file,
    const std::string& name,
    int64_t pairs) {
  for (const auto& item : read_weights(file, ReadOptions().mmap(true))) {
    if (item.key() != name && !ends_with(item.key(), "." + name)) {
      continue;
    }
    TORCH_ATTENTION_CHECK(
        item.value().is_floating_point() && item.value().dim() == 2 &&
            item.value().size(0) == 1 && item.value().size(1) == pairs,
        "expected a floating-point \"{}\" of shape [1, {}] in \"{}\", but "
        "got one of {}",
        item.key(),
        pairs,
        file,
        c10::str(item.value().sizes()));
    return item.value();
  }
  C10_THROW_ERROR(
      Error,
      format_text("expected \"{}\" in \"{}\", which has none", name, file));
}

} // namespace

std::ostream& operator<<(std::ostream& stream, PretrainedPart part) {
  return stream << name_of(part);
}

MultiHeadAttention attention_from_pretrained(
    const std::string& folder,
    int64_t layer,
    const PretrainedOptions& options) {
  return named("attention_from_pretrained", folder, layer, [&] {
    check_no_adapter(folder, options.adapter());
    auto located = locate(folder, {layer, options.part()}, options);
    auto& its_options = located.described.options;
    if (options.context_length()) {
      its_options.context_length(*options.context_length());
    }
    return fill<MultiHeadAttention>(
        its_options, located.weights, layer, options);
  });
}

CrossAttention cross_attention_from_pretrained(
    const std::string& folder,
    int64_t layer,
    const PretrainedOptions& options) {
  return named("cross_attention_from_pretrained", folder, layer, [&] {
    check_no_adapter(folder, options.adapter());
    const auto located =
        locate(folder, {layer, options.part(), /*is_cross=*/true}, options);
    return fill<CrossAttention>(
        cross_options(located.described), located.weights, layer, options);
  });
}

LatentAttention latent_attention_from_pretrained(
    const std::string& folder,
    int64_t layer,
    const PretrainedOptions& options) {
  return named("latent_attention_from_pretrained", folder, layer, [&] {
    check_no_adapter(folder, options.adapter());
    ModelConfig config(folder);
    auto described = describe_latent(config, layer);
    if (options.context_length()) {
      described.options.context_length(*options.context_length());
    }
    return fill<LatentAttention>(
        described.options,
        locate_path(folder, config, described.model_type, described.path),
        layer,
        options);
  });
}

RelativeBias relative_bias_from_pretrained(
    const std::string& folder,
    const PretrainedOptions& options) {
  return load_relative_bias(folder, std::nullopt, options);
}

RelativeBias relative_bias_from_pretrained(
    const std::string& folder,
    int64_t layer,
    const PretrainedOptions& options) {
  return load_relative_bias(folder, layer, options);
}

RotaryAngles rotary_from_pretrained(
    const std::string& folder,
    int64_t height,
    int64_t width,
    const PretrainedOptions& options) {
  const auto make = [&] {
    ModelConfig config(folder);
    auto part = options.part();
    const auto parts = parts_of(config);
    if (part == PretrainedPart::kAuto &&
        std::count(parts.begin(), parts.end(), PretrainedPart::kVision) > 0) {
      part = PretrainedPart::kVision;
    }
    const auto described = describe_attention(config, {/*layer=*/0, part});
    TORCH_ATTENTION_CHECK(
        described.image_rotary.has_value(),
        "model_type \"{}\" of \"{}\" {}",
        described.model_type,
        config.path(),
        described.needs_rotary
            ? "rotates by places in two dimensions in a way that its "
              "configuration does not tell"
            : "does not rotate by places in two dimensions");
    const auto& its_options = described.options;
    const auto head_dim = its_options.head_dim().value_or(
        its_options.d_out() / its_options.num_heads());
    const auto& rotary = *described.image_rotary;
    auto angles = angles_of_image(
        rotary,
        head_dim,
        height,
        width,
        rotary.learned.empty() ? torch::Tensor()
                               : learned_angles(
                                     weight_file_of(folder, config),
                                     rotary.learned,
                                     head_dim / 2));
    const auto dtype =
        options.dtype() == torch::kDouble ? torch::kDouble : torch::kFloat;
    for (auto* x : {&angles.cos, &angles.sin}) {
      *x = x->to(options.device(), dtype);
    }
    return angles;
  };
  try {
    return make();
  } catch (const std::exception& error) {
    throw_printable(format_text(
        "rotary_from_pretrained(\"{}\", {}, {}): {}",
        escaped(folder),
        height,
        width,
        error_message(error)));
  }
}

MultiHeadAttentionOptions options_from_config(
    const std::string& path,
    int64_t layer,
    PretrainedPart part) {
  return named("options_from_config", path, layer, [&] {
    ModelConfig config(path);
    return describe_attention(config, {layer, part}).options;
  });
}

CrossAttentionOptions cross_options_from_config(
    const std::string& path,
    int64_t layer) {
  return named("cross_options_from_config", path, layer, [&] {
    ModelConfig config(path);
    return cross_options(describe_attention(
        config, {layer, PretrainedPart::kAuto, /*is_cross=*/true}));
  });
}

LatentAttentionOptions latent_options_from_config(
    const std::string& path,
    int64_t layer) {
  return named("latent_options_from_config", path, layer, [&] {
    ModelConfig config(path);
    return describe_latent(config, layer).options;
  });
}

std::vector<std::string> pretrained_model_types() {
  auto types = known_model_types();
  const auto latent = latent_model_types();
  types.insert(types.end(), latent.begin(), latent.end());
  std::sort(types.begin(), types.end());
  return types;
}

} // namespace torch_attention
