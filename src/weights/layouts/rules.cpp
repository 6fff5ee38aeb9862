#include <weights/layouts/rules.h>

#include <format_text.h>
#include <weights/layouts/parts.h>

#include <algorithm>
#include <iterator>
#include <numeric>
#include <string_view>
#include <unordered_set>
#include <utility>

namespace torch_attention::weights::layouts {

namespace {

const std::string kHead = "{}";

/// Returns the key of one head.
std::string key_of_head(
    const std::string& scope,
    const std::string& file_key,
    int64_t head) {
  auto key = file_key;
  key.replace(key.find(kHead), kHead.size(), std::to_string(head));
  return key_at(scope, key);
}

bool has_tensor(const StateDict& state, const std::string& key) {
  const auto* tensor = state.find(key);
  return tensor != nullptr && tensor->defined();
}

/// Returns whether all parts can be transposed. A bias is its own transpose.
bool are_matrices(const std::vector<Part>& parts) {
  return std::all_of(parts.begin(), parts.end(), [](const Part& part) {
    return part.tensor.dim() <= 2;
  });
}

/// Transposes each part, and returns the dimension along which they are then
/// concatenated.
int64_t transpose_all(std::vector<Part>& parts) {
  int64_t dimension = 0;
  for (auto& part : parts) {
    dimension = part.tensor.dim() == 2 ? 1 : 0;
    part.tensor = part.tensor.t();
  }
  return dimension;
}

/// Returns how many of `total` rows each tensor gets: the expected number if
/// that is known and fits, otherwise equal numbers. Empty if neither fits.
std::vector<int64_t> row_counts(
    int64_t total,
    const std::vector<std::optional<int64_t>>& expected) {
  std::vector<int64_t> counts;
  for (const auto& rows : expected) {
    if (rows.value_or(0) > 0) {
      counts.push_back(*rows);
    }
  }
  const bool are_known = counts.size() == expected.size();
  if (are_known &&
      std::accumulate(counts.begin(), counts.end(), int64_t{0}) == total) {
    return counts;
  }
  const auto tensors = static_cast<int64_t>(expected.size());
  if (total == 0 || total % tensors != 0) {
    return {};
  }
  return std::vector<int64_t>(expected.size(), total / tensors);
}

/// Returns the sources of the tensors `keys` on one side of a rule:
/// concatenates the parts of the other side along dimension 0, and slices them
/// again. Messages use the parts `as_stored` in the file, and call rows
/// `rows_name`.
std::vector<Source> distribute(
    std::vector<Part> parts,
    const std::vector<Part>& as_stored,
    const std::vector<std::string>& keys,
    const std::vector<std::optional<int64_t>>& rows,
    const char* rows_name) {
  if (keys.size() == 1 && (parts.size() == 1 || can_join(parts))) {
    return made_of(std::move(parts));
  }
  std::vector<Source> sources;
  std::string why = "which cannot be stacked";
  if (can_join(parts)) {
    int64_t begin = 0;
    for (const auto count : row_counts(rows_of(parts), rows)) {
      sources.emplace_back().parts = rows_between(parts, begin, count);
      begin += count;
    }
    why = format_text(
        "whose {} {} do not divide into {} parts",
        rows_of(parts),
        rows_name,
        keys.size());
  }
  return sources.empty() ? refuse_all(keys, as_stored, why) : sources;
}

bool is_wanted(const WeightLayout::Rule& rule, const Shapes* wanted) {
  return wanted == nullptr ||
      std::any_of(
             rule.canonical_keys.begin(),
             rule.canonical_keys.end(),
             [&](const auto& key) { return wanted->count(key) > 0; });
}

/// Returns whether an earlier rule has provided a tensor of this rule.
bool is_done(const WeightLayout::Rule& rule, const Sources& canonical) {
  return std::any_of(
      rule.canonical_keys.begin(),
      rule.canonical_keys.end(),
      [&](const auto& key) { return canonical.count(key) > 0; });
}

std::vector<std::optional<int64_t>> rows_wanted(
    const WeightLayout::Rule& rule,
    const Shapes* wanted) {
  std::vector<std::optional<int64_t>> rows;
  for (const auto& key : rule.canonical_keys) {
    const auto shape =
        wanted != nullptr ? wanted->find(key) : Shapes::const_iterator{};
    const bool is_known =
        wanted != nullptr && shape != wanted->end() && !shape->second.empty();
    rows.push_back(
        is_known ? std::make_optional(shape->second.front()) : std::nullopt);
  }
  return rows;
}

/// Returns the sources of a rule's canonical tensors from the file's `stored`.
std::vector<Source> read_rule(
    const WeightLayout::Rule& rule,
    const std::string& scope,
    const std::vector<Part>& stored,
    const std::vector<std::optional<int64_t>>& rows) {
  if (rule.tied) {
    auto sources = made_of({stored.front()});
    sources.front().copies.assign(std::next(stored.begin()), stored.end());
    return sources;
  }
  std::vector<std::string> keys;
  for (const auto& key : rule.canonical_keys) {
    keys.push_back(key_at(scope, key));
  }
  if (!rule.shares.empty()) {
    return take_apart(rule, stored, keys);
  }
  auto parts = rule.stacked ? as_rows(stored) : stored;
  if (rule.transposed) {
    if (!are_matrices(parts)) {
      return refuse_all(keys, stored, "which is no matrix");
    }
    transpose_all(parts);
  }
  return distribute(
      std::move(parts),
      stored,
      keys,
      rows,
      rule.transposed ? "columns" : "rows");
}

} // namespace

std::vector<std::string> Source::keys() const {
  std::vector<std::string> result;
  std::unordered_set<std::string_view> known;
  for (const auto& part : parts) {
    if (!part.key.empty() && known.insert(part.key).second) {
      result.push_back(part.key);
    }
  }
  return result;
}

std::string key_at(const std::string& scope, const std::string& key) {
  return scope.empty() ? key : scope + "." + key;
}

bool lists_heads(const std::string& file_key) {
  return file_key.find(kHead) != std::string::npos;
}

std::vector<std::string> keys_of(
    const StateDict& state,
    const std::string& scope,
    const std::string& file_key) {
  std::vector<std::string> keys;
  if (!lists_heads(file_key)) {
    auto key = key_at(scope, file_key);
    if (has_tensor(state, key)) {
      keys.push_back(std::move(key));
    }
    return keys;
  }
  for (int64_t head = 0;; ++head) {
    auto key = key_of_head(scope, file_key, head);
    if (!has_tensor(state, key)) {
      return keys;
    }
    keys.push_back(std::move(key));
  }
}

std::vector<std::string> keys_for_heads(
    const std::string& scope,
    const std::string& file_key,
    int64_t num_heads) {
  if (!lists_heads(file_key)) {
    return {key_at(scope, file_key)};
  }
  std::vector<std::string> keys;
  for (int64_t head = 0; head < num_heads; ++head) {
    keys.push_back(key_of_head(scope, file_key, head));
  }
  return keys;
}

Sources to_canonical(
    const StateDict& state,
    const std::string& scope,
    const WeightLayout& layout,
    const Shapes* wanted) {
  Sources result;
  for (const auto& rule : layout.rules()) {
    if (!is_wanted(rule, wanted) || is_done(rule, result)) {
      continue;
    }
    std::vector<Part> stored;
    for (auto& key : keys_of(state, scope, rule.file_key)) {
      auto tensor = state[key];
      stored.push_back({std::move(key), std::move(tensor)});
    }
    if (stored.empty()) {
      continue;
    }
    auto sources = read_rule(rule, scope, stored, rows_wanted(rule, wanted));
    for (size_t i = 0; i < sources.size(); ++i) {
      result.emplace(rule.canonical_keys[i], std::move(sources[i]));
    }
  }
  return result;
}

std::vector<Source> from_canonical(
    const Sources& canonical,
    const WeightLayout::Rule& rule,
    const std::vector<std::string>& keys,
    const std::vector<std::optional<int64_t>>& rows) {
  const auto& first = canonical.at(rule.canonical_keys.front());
  if (rule.tied) {
    return std::vector<Source>(keys.size(), first);
  }
  if (rule.stacked) {
    return rows_apart(first.parts, keys);
  }
  if (!rule.shares.empty()) {
    return put_together(canonical, rule, keys);
  }
  std::vector<Part> parts;
  for (const auto& key : rule.canonical_keys) {
    const auto& source = canonical.at(key);
    parts.insert(parts.end(), source.parts.begin(), source.parts.end());
  }
  if (rule.transposed && !are_matrices(parts)) {
    return refuse_all(keys, parts, "which is no matrix");
  }
  auto sources = distribute(parts, parts, keys, rows, "rows");
  if (keys.size() == 1 && rule.canonical_keys.size() == 1) {
    sources.front().copies = first.copies;
  }
  if (rule.transposed) {
    for (auto& source : sources) {
      source.dimension = transpose_all(source.parts);
    }
  }
  return sources;
}

Shapes shapes_of(const Sources& canonical) {
  Shapes shapes;
  for (const auto& [key, source] : canonical) {
    if (!source.is_found()) {
      continue;
    }
    auto shape = source.parts.front().tensor.sizes().vec();
    if (source.parts.size() > 1) {
      shape.front() = rows_of(source.parts);
    }
    shapes.emplace(key, std::move(shape));
  }
  return shapes;
}

Source zeros_of(torch::IntArrayRef shape, const torch::TensorOptions& options) {
  Source zeros;
  zeros.parts.push_back({"", torch::zeros({}, options).expand(shape)});
  return zeros;
}

} // namespace torch_attention::weights::layouts
