#include <weights/hints.h>

#include <format_text.h>
#include <weights/layer_names.h>
#include <weights/layouts/find.h>
#include <weights/nearest.h>
#include <weights/select.h>

#include <algorithm>
#include <cstring>
#include <optional>
#include <unordered_set>
#include <utility>

namespace torch_attention::weights {

using namespace files;
using namespace layouts;

namespace {

constexpr size_t kMaxHints = 10;

/// Returns the path of the selected part, as a prefix would name it.
std::string selected_path(const WeightFile& file) {
  auto path = file.start;
  const auto root = dotted(file.root);
  if (starts_with(path, root)) {
    path.erase(0, root.size());
  }
  return path;
}

/// Suggests another path if the file has all the missing keys below it.
std::optional<std::string> same_keys_hint(const Refusal& refusal) {
  auto prefixes = prefixes_with(refusal.file, refusal.missing);
  if (!refusal.nothing_loaded || prefixes.empty()) {
    return std::nullopt;
  }
  for (auto& prefix : prefixes) {
    prefix.insert(0, selected_path(refusal.file));
  }
  return format_text(
      "The file has these keys below another path: use {}.",
      prefix_choice(prefixes));
}

/// Suggests where the file has attention, if the module is an attention module.
std::optional<std::string> attention_hint(const Refusal& refusal) {
  const auto modules = find_attention(refusal.targets);
  const bool is_attention = std::any_of(
      modules.begin(), modules.end(), [](const Attention& attention) {
        return attention.scope.empty();
      });
  if (!is_attention) {
    return std::nullopt;
  }
  const auto selected = selected_path(refusal.file);
  const auto paths = attention_paths(whole_keys(refusal.file));
  std::vector<std::string> below;
  for (const auto& path : paths) {
    const auto start = dotted(path);
    if (start.size() < selected.size() && starts_with(selected, start)) {
      return format_text(
          "The attention of the file is at \"{}\", above: use "
          "LoadOptions().prefix(\"{}\").",
          path,
          path);
    }
    if (start.size() > selected.size() && starts_with(start, selected)) {
      below.push_back(path);
    }
  }
  if (!refusal.nothing_loaded || below.empty()) {
    return std::nullopt;
  }
  return format_text(
      "The file has attention at {}: use {}.",
      quoted_list(below),
      prefix_choice({below.front()}));
}

/// Suggests the names that missing keys would have in the file's layout.
void add_layout_hints(
    const Refusal& refusal,
    const std::unordered_set<std::string>& missing,
    std::vector<std::string>& hints) {
  for (const auto& [key, source] : refusal.mapping.sources) {
    if (source.state == Source::State::kMissing && source.looked_for != key &&
        missing.count(key) > 0 && hints.size() < kMaxHints) {
      hints.push_back(format_text(
          "In the layout {} \"{}\" would be {}.",
          refusal.mapping.layout,
          key,
          source.looked_for));
    }
  }
}

/// Suggests keys of the file whose spelling is almost the same.
void add_spelling_hints(
    const Refusal& refusal,
    std::vector<std::string>& hints) {
  NearestText nearest(refusal.mapping.unused);
  for (const auto& key : refusal.missing) {
    if (hints.size() >= kMaxHints) {
      return;
    }
    if (const auto found = nearest.find(key)) {
      hints.push_back(format_text(
          "Is \"{}\" of the file the \"{}\" that is missing?", *found, key));
    }
  }
}

const Mismatch* find_mismatch(
    const std::vector<Mismatch>& mismatches,
    const std::string& key) {
  const auto found = std::find_if(
      mismatches.begin(), mismatches.end(), [&](const Mismatch& mismatch) {
        return mismatch.key == key && mismatch.file_shape.size() == 2 &&
            mismatch.module_shape.size() == 2;
      });
  return found == mismatches.end() ? nullptr : &*found;
}

/// Returns the sizes that differ between the projections at `scope`.
std::vector<std::string> differing_sizes(
    const std::vector<Mismatch>& mismatches,
    const std::string& scope) {
  std::vector<std::string> sizes;
  const auto add = [&](const Mismatch* of, size_t dimension, const char* name) {
    if (of != nullptr &&
        of->file_shape[dimension] != of->module_shape[dimension]) {
      sizes.push_back(format_text(
          "{} is {} in the file and {} in the module",
          name,
          of->file_shape[dimension],
          of->module_shape[dimension]));
    }
  };
  const auto* query = find_mismatch(mismatches, scope + "W_query.weight");
  const auto* key = find_mismatch(mismatches, scope + "W_key.weight");
  const auto* out = find_mismatch(mismatches, scope + "out_proj.weight");
  add(query != nullptr ? query : key, 1, "d_in");
  add(query, 0, "num_heads * head_dim");
  add(key, 0, "num_kv_heads * head_dim");
  add(out, 0, "d_out");
  return sizes;
}

} // namespace

std::vector<std::string> key_hints(const Refusal& refusal) {
  std::vector<std::string> hints;
  if (refusal.missing.empty()) {
    return hints;
  }
  if (!refusal.file.why_empty.empty()) {
    hints.push_back(refusal.file.why_empty + ".");
    return hints;
  }
  if (auto hint = same_keys_hint(refusal)) {
    hints.push_back(std::move(*hint));
    return hints;
  }
  if (auto hint = attention_hint(refusal)) {
    hints.push_back(std::move(*hint));
    return hints;
  }
  const bool lacks_queries = std::any_of(
      refusal.missing.begin(),
      refusal.missing.end(),
      [](const std::string& key) { return ends_with(key, "W_query.weight"); });
  auto names = lacks_queries
      ? layer_names_hint(refusal.file.tensors, selected_path(refusal.file))
      : std::nullopt;
  if (names) {
    hints.push_back(std::move(*names));
    return hints;
  }
  const std::unordered_set<std::string> missing(
      refusal.missing.begin(), refusal.missing.end());
  add_layout_hints(refusal, missing, hints);
  add_spelling_hints(refusal, hints);
  return hints;
}

std::vector<std::string> size_hints(const std::vector<Mismatch>& mismatches) {
  for (const auto& mismatch : mismatches) {
    for (const char* name :
         {"W_query.weight", "W_key.weight", "out_proj.weight"}) {
      if (!ends_with(mismatch.key, name)) {
        continue;
      }
      const auto scope =
          mismatch.key.substr(0, mismatch.key.size() - std::strlen(name));
      const auto sizes = differing_sizes(mismatches, scope);
      if (!sizes.empty()) {
        return {format_text(
            "The attention is of other sizes: {}.", fmt::join(sizes, "; "))};
      }
    }
  }
  return {};
}

} // namespace torch_attention::weights
