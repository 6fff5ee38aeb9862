#include <torch_attention/weights/pretrained.h>

#include <check.h>
#include <error_message.h>
#include <format_text.h>
#include <torch_attention/weights/load.h>
#include <torch_attention/weights/read.h>
#include <undrawn_weights.h>
#include <weights/folder.h>
#include <weights/pretrained/adapter.h>
#include <weights/pretrained/attention_class.h>
#include <weights/pretrained/describe.h>
#include <weights/pretrained/families.h>
#include <weights/pretrained/find_place.h>
#include <weights/pretrained/latent.h>
#include <weights/pretrained/multimodal.h>
#include <weights/pretrained/quantized.h>
#include <weights/pretrained/relative.h>
#include <weights/pretrained/relative_bias.h>
#include <weights/pretrained/shared_embeddings.h>
#include <weights/pretrained/window_bias.h>
#include <weights/read.h>
#include <weights/select.h>
#include <weights/text.h>

#include <c10/util/Exception.h>

#include <algorithm>
#include <exception>
#include <optional>
#include <ostream>

namespace torch_attention {

using namespace weights;
using namespace weights::pretrained;

namespace {

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

/// Returns the description of a layer whose attention is of this class.
DescribedAttention describe_as_class(
    ModelConfig& config,
    const Wanted& wanted,
    AttentionClass of) {
  auto described = describe_attention(config, wanted);
  check_class(config, described, of);
  return described;
}

Located locate(
    const std::string& folder,
    const Wanted& wanted,
    const PretrainedOptions& options,
    AttentionClass of = AttentionClass::kMultiHead) {
  ModelConfig config(folder);
  auto described = describe_as_class(config, wanted, of);
  TORCH_ATTENTION_CHECK(
      !described.needs_bias || options.bias_by_caller(),
      "model_type \"{}\" of \"{}\" adds {} to the scores, which is not "
      "computed: with "
      "PretrainedOptions().bias_by_caller(true) the layer is loaded, and "
      "each call needs the bias, as ForwardOptions().bias",
      described.model_type,
      config.path(),
      described.bias_of_caller);
  TORCH_ATTENTION_CHECK(
      !described.needs_rotary || options.rotary_by_caller(),
      "model_type \"{}\" of \"{}\" rotates by places in two dimensions, "
      "which are not computed: with "
      "PretrainedOptions().rotary_by_caller(true) the layer is loaded, and "
      "each call needs ForwardOptions().rotary_cos and rotary_sin, as "
      "rotary_from_pretrained makes them",
      described.model_type,
      config.path());
  if (config.is_gguf()) {
    described.places = {
        {format_text("blk.{}", wanted.layer), WeightLayout::gguf()}};
  }
  auto file = weight_file_of(folder, config);
  const auto weights = read_weight_file(file);
  auto place = find_place(whole_keys(weights), described, file);
  check_not_quantized(config, weights, place.path);
  if (auto rotary = described.options.rotary()) {
    take_stored_rotary(
        file, described.stored_rotary, described.head_dim(), *rotary);
    described.options.rotary(rotary);
  }
  return {
      {config.path(), described.model_type, std::move(file), std::move(place)},
      std::move(described)};
}

/// Makes a module of these options, in evaluation mode, to be filled.
template <typename Holder, typename Options>
Holder make_empty(const Options& its_options) {
  const UndrawnWeights undrawn;
  Holder module(its_options);
  module->eval();
  return module;
}

/// Logs what was built, if that is wanted.
template <typename Holder>
void log_layer(
    const PretrainedOptions& options,
    const WeightsOfModel& weights,
    int64_t layer,
    const Holder& module) {
  if (options.log() != nullptr) {
    *options.log() << escaped(weights.config) << ": layer " << layer << " of "
                   << escaped(weights.model_type) << "\n"
                   << module << "\n";
  }
}

/// Makes a module of these options, and fills it with the layer's weights.
template <typename Holder, typename Options>
Holder fill(
    const Options& its_options,
    const WeightsOfModel& weights,
    int64_t layer,
    const PretrainedOptions& options,
    const std::optional<SharedEmbeddings>& shared = {}) {
  auto attention = make_empty<Holder>(its_options);
  auto report = load_weights(
      *attention,
      weights.file,
      LoadOptions()
          .prefix(weights.place.path)
          .layout(weights.place.layout)
          .adapter(options.adapter())
          .dtype(options.dtype())
          .device(options.device()));
  if (shared) {
    load_shared_embeddings(
        *shared,
        weights.place.path,
        attention->named_parameters()["relative_embeddings"],
        report);
  }
  log_layer(options, weights, layer, attention);
  if (options.log() != nullptr) {
    *options.log() << report;
  }
  return attention;
}

CrossAttentionOptions cross_options(const DescribedAttention& described) {
  const auto& options = described.options;
  const CrossAttentionOptions sizes(
      options.d_in(),
      described.d_context.value_or(options.d_in()),
      options.d_out(),
      options.num_heads());
  return with_heads_of(options, sizes)
      .value_dim(options.value_dim())
      .rule(options.rule().without_positions())
      .needs_value_input(options.needs_value_input());
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
    if (!ends_with_names(item.key(), name)) {
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

RelativeAttention relative_attention_from_pretrained(
    const std::string& folder,
    int64_t layer,
    const PretrainedOptions& options) {
  return named("relative_attention_from_pretrained", folder, layer, [&] {
    check_no_adapter(folder, options.adapter());
    const auto located = locate(
        folder, {layer, options.part()}, options, AttentionClass::kRelative);
    return fill<RelativeAttention>(
        *located.described.relative,
        located.weights,
        layer,
        options,
        located.described.shared_embeddings);
  });
}

LongformerAttention longformer_attention_from_pretrained(
    const std::string& folder,
    int64_t layer,
    const PretrainedOptions& options) {
  return named("longformer_attention_from_pretrained", folder, layer, [&] {
    check_no_adapter(folder, options.adapter());
    const auto located = locate(
        folder, {layer, options.part()}, options, AttentionClass::kLongformer);
    return fill<LongformerAttention>(
        *located.described.longformer, located.weights, layer, options);
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

WindowBias window_bias_from_pretrained(
    const std::string& folder,
    int64_t layer,
    const PretrainedOptions& options) {
  return named("window_bias_from_pretrained", folder, layer, [&] {
    check_no_adapter(folder, options.adapter());
    const auto [weights, described] = locate(
        folder,
        {layer, options.part()},
        PretrainedOptions(options).bias_by_caller(true));
    TORCH_ATTENTION_CHECK(
        described.windows && described.needs_bias,
        "model_type \"{}\" of \"{}\" has no bias by position within windows of "
        "an image",
        described.model_type,
        weights.config);
    auto bias = make_empty<WindowBias>(WindowBiasOptions(
        described.options.num_heads(),
        described.windows->height(),
        described.windows->width()));
    bias->to(options.device(), options.dtype());
    load_window_bias(
        weights.file, weights.place.path, bias->relative_position_bias_table);
    log_layer(options, weights, layer, bias);
    return bias;
  });
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
    const auto head_dim = described.head_dim();
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
    return describe_as_class(config, {layer, part}, AttentionClass::kMultiHead)
        .options;
  });
}

std::optional<ImageWindowOptions> windows_from_config(
    const std::string& path,
    int64_t layer,
    PretrainedPart part) {
  return named("windows_from_config", path, layer, [&] {
    ModelConfig config(path);
    return describe_attention(config, {layer, part}).windows;
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

RelativeAttentionOptions relative_options_from_config(
    const std::string& path,
    int64_t layer,
    PretrainedPart part) {
  return named("relative_options_from_config", path, layer, [&] {
    ModelConfig config(path);
    return *describe_as_class(config, {layer, part}, AttentionClass::kRelative)
                .relative;
  });
}

LongformerAttentionOptions longformer_options_from_config(
    const std::string& path,
    int64_t layer,
    PretrainedPart part) {
  return named("longformer_options_from_config", path, layer, [&] {
    ModelConfig config(path);
    return *describe_as_class(
                config, {layer, part}, AttentionClass::kLongformer)
                .longformer;
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
