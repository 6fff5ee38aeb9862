#include <weights/pretrained/listing.h>

#include <error_message.h>
#include <format_text.h>
#include <weights/folder.h>
#include <weights/pretrained/code.h>
#include <weights/pretrained/families.h>
#include <weights/pretrained/latent.h>
#include <weights/pretrained/multimodal.h>

#include <c10/util/Exception.h>

#include <sys/stat.h>

#include <algorithm>
#include <exception>
#include <ostream>
#include <vector>

namespace torch_attention::weights::pretrained {

namespace {

/// Layers of the same attention, or for which the same is wrong.
struct Group {
  std::vector<int64_t> layers;
  std::string words;
  std::string code;
};

/// "0-4, 6".
std::string ranges_text(const std::vector<int64_t>& layers) {
  std::vector<std::string> ranges;
  for (size_t begin = 0; begin < layers.size();) {
    auto end = begin;
    while (end + 1 < layers.size() && layers[end + 1] == layers[end] + 1) {
      ++end;
    }
    ranges.push_back(
        begin == end ? format_text("{}", layers[begin])
                     : format_text("{}-{}", layers[begin], layers[end]));
    begin = end + 1;
  }
  return format_text("{}", fmt::join(ranges, ", "));
}

Group group_of(ModelConfig config, const Wanted& wanted) {
  try {
    const auto described = describe_attention(config, wanted);
    auto words = words_of(described.options, wanted.is_cross);
    if (described.needs_bias) {
      words += ", a bias that the caller gives";
    }
    if (described.needs_rotary) {
      words += " by angles that the caller gives";
    }
    return {{wanted.layer}, std::move(words), code_of(described.options)};
  } catch (const std::exception& error) {
    return {{wanted.layer}, error_message(error), ""};
  }
}

std::vector<Group> groups_of(
    const ModelConfig& config,
    PretrainedPart part,
    bool is_cross) {
  std::vector<Group> groups;
  auto counted = config;
  const auto count = count_layers(counted, part);
  // Enough for any model, and listed within seconds.
  constexpr int64_t kMostLayers = 2000;
  TORCH_CHECK(
      count <= kMostLayers,
      format_text(
          "expected no more than {} layers in \"{}\", but got {}",
          kMostLayers,
          config.path(),
          count));
  for (int64_t layer = 0; layer < count; ++layer) {
    auto group = group_of(config, {layer, part, is_cross});
    // Which layer lacks attention is said before the words.
    const auto start = format_text("layer {} of ", layer);
    if (group.code.empty() && group.words.find(start) == 0) {
      group.words = "no attention";
    }
    const auto same =
        std::find_if(groups.begin(), groups.end(), [&](const Group& other) {
          return other.words == group.words && other.code == group.code;
        });
    if (same == groups.end()) {
      groups.push_back(std::move(group));
    } else {
      same->layers.push_back(layer);
    }
  }
  return groups;
}

/// The call that loads a layer.
std::string call_of(
    const std::string& folder,
    PretrainedPart part,
    bool is_cross) {
  if (is_cross) {
    return format_text(
        "cross_attention_from_pretrained(\"{}\", layer)", folder);
  }
  if (part == PretrainedPart::kAuto) {
    return format_text("attention_from_pretrained(\"{}\", layer)", folder);
  }
  auto name = name_of(part);
  name.front() = static_cast<char>(name.front() - 'a' + 'A');
  return format_text(
      "attention_from_pretrained(\n"
      "    \"{}\", layer, PretrainedOptions().part(PretrainedPart::k{}))",
      folder,
      name);
}

void print_groups(
    const std::string& folder,
    const ModelConfig& config,
    PretrainedPart part,
    bool is_cross,
    std::ostream& out) {
  const auto title = is_cross         ? std::string("cross-attention ")
      : part == PretrainedPart::kAuto ? std::string()
                                      : name_of(part) + " ";
  for (const auto& group : groups_of(config, part, is_cross)) {
    out << format_text(
        "{}{} {}: {}\n",
        title,
        group.layers.size() == 1 ? "layer" : "layers",
        ranges_text(group.layers),
        group.words);
    // The options of cross-attention are of another class.
    if (!group.code.empty() && !is_cross) {
      out << group.code << "\n";
    }
  }
  out << call_of(folder, part, is_cross) << "\n";
}

/// All layers of these models are equal.
void print_latent(
    const std::string& folder,
    ModelConfig& config,
    std::ostream& out) {
  const auto count = count_latent_layers(config);
  const auto options = describe_latent(config, /*layer=*/0).options;
  out << format_text(
      "layers 0-{}: latent attention, {} heads of {} + {}, values of {}, made of "
      "{} numbers{}\n"
      "latent_attention_from_pretrained(\"{}\", layer)\n",
      count - 1,
      options.num_heads(),
      options.nope_dim(),
      options.rope_dim(),
      options.value_dim(),
      options.kv_rank(),
      options.query_rank()
          ? format_text(", queries of {}", *options.query_rank())
          : "",
      folder);
}

/// The `model_type` of the configuration in a folder; empty if there is none,
/// of which loading says why.
std::string type_in(const std::string& path) {
  struct stat status {};
  if (::stat(path.c_str(), &status) != 0 || !S_ISDIR(status.st_mode)) {
    return "";
  }
  try {
    return ModelConfig(path).text("model_type").value_or("");
  } catch (const std::exception&) {
    return "";
  }
}

} // namespace

bool is_known_model(const std::string& path) {
  const auto known = pretrained_model_types();
  return std::binary_search(known.begin(), known.end(), type_in(path));
}

std::string why_unknown(const std::string& path) {
  const auto type = type_in(path);
  return type.empty() || is_known_model(path)
      ? ""
      : why_refused(file_in(path, "config.json"), type);
}

void list_layers(const std::string& folder, std::ostream& out) {
  const ModelConfig config(folder);
  auto of_parts = config;
  if (is_latent_type(of_parts.text("model_type").value_or(""))) {
    print_latent(folder, of_parts, out);
    return;
  }
  const auto parts = parts_of(of_parts);
  for (const auto part : parts) {
    print_groups(folder, config, part, /*is_cross=*/false, out);
    if (part == PretrainedPart::kDecoder) {
      print_groups(folder, config, part, /*is_cross=*/true, out);
    }
  }
}

} // namespace torch_attention::weights::pretrained
