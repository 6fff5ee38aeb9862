#include <torch_attention/weights/inspect_pretrained.h>

#include <check.h>
#include <error_message.h>
#include <format_text.h>
#include <weights/pretrained/adapter.h>
#include <weights/pretrained/attention_class.h>
#include <weights/pretrained/code.h>
#include <weights/pretrained/families.h>
#include <weights/pretrained/latent.h>
#include <weights/pretrained/multimodal.h>
#include <weights/pretrained/relative.h>

#include <c10/util/Exception.h>

#include <algorithm>
#include <exception>
#include <optional>
#include <utility>
#include <vector>

namespace torch_attention {

using namespace weights::pretrained;

namespace {

using Layers = PretrainedInfo::Layers;

/// Checks that a model has no more layers than can be listed within seconds.
int64_t checked_count(int64_t count, const ModelConfig& config) {
  constexpr int64_t kMost = 2000;
  TORCH_ATTENTION_CHECK(
      count <= kMost,
      "expected no more than {} layers in \"{}\", but got {}",
      kMost,
      config.path(),
      count);
  // The time is proportional to this product.
  constexpr size_t kMostValues = 4'000'000;
  const auto values = config.num_values() * static_cast<size_t>(count);
  TORCH_ATTENTION_CHECK(
      values <= kMostValues,
      "\"{}\" has {} values for {} layers, more than any model: they cannot "
      "be listed within seconds",
      config.path(),
      config.num_values(),
      count);
  return count;
}

/// Returns the C++ code that loads these layers.
std::string call_of(
    const std::string& folder,
    const Layers& layers,
    AttentionClass of) {
  if (layers.is_cross) {
    return format_text(
        "cross_attention_from_pretrained(\"{}\", layer)", escaped(folder));
  }
  std::string options;
  if (layers.part != PretrainedPart::kAuto) {
    auto name = name_of(layers.part);
    name.front() = static_cast<char>(name.front() - 'a' + 'A');
    options += format_text(".part(PretrainedPart::k{})", name);
  }
  if (layers.needs_bias) {
    options += ".bias_by_caller(true)";
  }
  if (layers.needs_rotary) {
    options += ".rotary_by_caller(true)";
  }
  const auto* kind = prefix_of_loader(of);
  return options.empty()
      ? format_text(
            "{}attention_from_pretrained(\"{}\", layer)", kind, escaped(folder))
      : format_text(
            "{}attention_from_pretrained(\n"
            "    \"{}\", layer, PretrainedOptions(){})",
            kind,
            escaped(folder),
            options);
}

/// Describes a layer, or the reason why it cannot be loaded.
Layers describe_layer(
    const std::string& folder,
    ModelConfig config,
    int64_t layer,
    PretrainedPart part,
    bool is_cross) {
  Layers result;
  result.part = part;
  result.is_cross = is_cross;
  result.numbers = {layer};
  try {
    const auto described = describe_attention(config, {layer, part, is_cross});
    result.needs_bias = described.needs_bias;
    result.needs_rotary = described.needs_rotary;
    const auto of = class_of(described);
    result.is_relative = of == AttentionClass::kRelative;
    result.is_longformer = of == AttentionClass::kLongformer;
    result.description = words_of(described.options, is_cross);
    if (result.is_longformer) {
      result.description += format_text(
          ", a window of {} to each side beside global tokens",
          described.longformer->attention_window() / 2);
    }
    if (result.is_relative) {
      result.description += ", " + words_of(*described.relative);
    }
    if (described.needs_bias) {
      result.description += ", a bias that the caller gives";
    }
    if (described.needs_rotary) {
      result.description += " by angles that the caller gives";
    }
    result.has_image_blocks = described.has_image_blocks;
    if (described.options.needs_blocks()) {
      result.description +=
          ", tokens of an image see each other: each call needs visible_blocks";
    } else if (described.has_image_blocks) {
      result.description +=
          ", tokens of an image see each other if the call gives "
          "visible_blocks";
    }
    result.has_image_windows = described.has_image_windows;
    if (described.has_image_windows) {
      result.description +=
          ", within windows whose cu_seqlens the caller gives";
    }
    if (described.windows) {
      result.description += format_text(
          ", within windows of {} x {} tokens{} that the caller makes",
          described.windows->height(),
          described.windows->width(),
          described.windows->shift() > 0
              ? format_text(", shifted by {},", described.windows->shift())
              : "");
    }
    result.needs_value_input = described.options.needs_value_input();
    if (result.needs_value_input) {
      result.description +=
          ", values of other tokens than queries and keys: each call needs "
          "value_input";
    }
    // Other classes have other options.
    if (!is_cross && of == AttentionClass::kMultiHead) {
      result.options = code_of(described.options);
    }
    result.call = call_of(folder, result, of);
  } catch (const std::exception& error) {
    result.description = error_message(error);
    // Without the number of the layer, so that such layers form one group.
    if (result.description.find(format_text("layer {} of ", layer)) == 0) {
      result.description = "no attention";
    }
  }
  return result;
}

/// Adds the layers of a part, with equal layers as one group.
void add_layers(
    const std::string& folder,
    const ModelConfig& config,
    PretrainedPart part,
    bool is_cross,
    PretrainedInfo& info) {
  auto counted = config;
  const auto count = checked_count(count_layers(counted, part), config);
  const auto type = type_of_part(counted, part);
  const auto first = static_cast<std::ptrdiff_t>(info.layers.size());
  for (int64_t layer = 0; layer < count; ++layer) {
    auto found = describe_layer(folder, config, layer, part, is_cross);
    const auto same = std::find_if(
        info.layers.begin() + first,
        info.layers.end(),
        [&](const Layers& other) {
          return other.description == found.description &&
              other.options == found.options;
        });
    if (same == info.layers.end()) {
      found.model_type = type;
      info.layers.push_back(std::move(found));
    } else {
      same->numbers.push_back(layer);
    }
  }
}

/// Describes the layers of a model that have latent attention, which are equal,
/// and then the first one that is refused. Throws its error if all are.
std::vector<Layers> latent_layers(
    const std::string& folder,
    ModelConfig& config,
    const std::string& model_type) {
  Layers result;
  result.model_type = model_type;
  result.is_latent = true;
  std::optional<Layers> refused;
  const auto count = checked_count(count_latent_layers(config), config);
  for (int64_t layer = 0; layer < count; ++layer) {
    if (!has_latent_attention(config, layer)) {
      continue;
    }
    try {
      (void)describe_latent(config, layer);
      result.numbers.push_back(layer);
    } catch (const std::exception& error) {
      if (!refused) {
        refused.emplace().description = error_message(error);
      }
    }
  }
  const auto first = result.numbers.empty() ? 0 : result.numbers.front();
  const auto options = describe_latent(config, first).options;
  result.description = format_text(
      "latent attention, {} heads of {} + {}, values of {}, made of {} numbers"
      "{}",
      options.num_heads(),
      options.nope_dim(),
      options.rope_dim(),
      options.value_dim(),
      options.kv_rank(),
      options.query_rank()
          ? format_text(", queries of {}", *options.query_rank())
          : "");
  result.call =
      format_text("latent_attention_from_pretrained(\"{}\", layer)", folder);
  std::vector<Layers> all = {std::move(result)};
  if (refused) {
    all.push_back(std::move(*refused));
  }
  return all;
}

PretrainedInfo inspect(const std::string& folder) {
  check_no_adapter(folder);
  ModelConfig config(folder);
  PretrainedInfo info;
  info.model_type = config.text("model_type").value_or("");
  if (is_latent_type(info.model_type)) {
    info.layers = latent_layers(folder, config, info.model_type);
    return info;
  }
  const auto known = known_model_types();
  if (!info.model_type.empty() &&
      !std::binary_search(known.begin(), known.end(), info.model_type)) {
    C10_THROW_ERROR(Error, why_refused(config.path(), info.model_type));
  }
  const auto parts = parts_of(config);
  for (const auto part : parts) {
    try {
      if (has_self_attention(config, part)) {
        add_layers(folder, config, part, /*is_cross=*/false, info);
      }
      if (has_cross_attention(config, part)) {
        add_layers(folder, config, part, /*is_cross=*/true, info);
      }
    } catch (const std::exception& error) {
      if (part == parts.back() && info.layers.size() + 1 == parts.size() &&
          std::all_of(
              info.layers.begin(), info.layers.end(), [](const Layers& x) {
                return x.numbers.empty();
              })) {
        throw;
      }
      // Another part may be supported.
      Layers refused;
      refused.part = part;
      refused.description = error_message(error);
      info.layers.push_back(std::move(refused));
    }
  }
  return info;
}

} // namespace

PretrainedInfo inspect_pretrained(const std::string& folder) {
  try {
    return inspect(folder);
  } catch (const std::exception& error) {
    throw_printable(format_text(
        "inspect_pretrained(\"{}\"): {}",
        escaped(folder),
        error_message(error)));
  }
}

} // namespace torch_attention
