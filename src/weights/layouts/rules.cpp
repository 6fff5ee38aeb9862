#include <weights/layouts/rules.h>

#include <format_text.h>

#include <algorithm>
#include <numeric>

namespace torch_attention {

namespace {

const std::string kHead = "{}";

/// The key of one head.
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

/// "c_attn.weight with shape torch.Size([8, 24])".
std::string describe(const std::vector<Piece>& pieces) {
  std::vector<std::string> texts;
  texts.reserve(pieces.size());
  for (const auto& piece : pieces) {
    texts.push_back(format_text(
        "{} with shape {}",
        list_text(piece.keys, " and "),
        shape_text(piece.tensor.sizes())));
  }
  return list_text(texts, ", ");
}

std::string problem_text(
    const std::vector<std::string>& keys,
    const std::vector<Piece>& pieces,
    const std::string& why) {
  return format_text(
      "size mismatch for {}: in the checkpoint they are {}, {}.",
      list_text(keys, ", "),
      describe(pieces),
      why);
}

/// What can be transposed; a bias is its own transpose.
bool are_matrices(const std::vector<Piece>& pieces) {
  return std::all_of(pieces.begin(), pieces.end(), [](const Piece& piece) {
    return piece.tensor.dim() <= 2;
  });
}

int64_t rows_of(const std::vector<Piece>& pieces) {
  int64_t rows = 0;
  for (const auto& piece : pieces) {
    rows += piece.tensor.size(0);
  }
  return rows;
}

/// How many of `total` rows each part gets: what is expected if that is known
/// and fits, else the same for all. Empty if there is no way.
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
  const auto parts = static_cast<int64_t>(expected.size());
  if (total == 0 || total % parts != 0) {
    return {};
  }
  return std::vector<int64_t>(expected.size(), total / parts);
}

/// The rows `begin` ... `begin + length` of the joined pieces.
std::vector<Piece> rows_between(
    const std::vector<Piece>& pieces,
    int64_t begin,
    int64_t length) {
  std::vector<Piece> result;
  int64_t offset = 0;
  for (const auto& piece : pieces) {
    const auto rows = piece.tensor.size(0);
    const auto from = std::max(begin - offset, int64_t{0});
    const auto to = std::min(begin + length - offset, rows);
    if (from < to) {
      result.push_back({piece.keys, piece.tensor.narrow(0, from, to - from)});
    }
    offset += rows;
  }
  return result;
}

/// `pieces` in consecutive parts; empty if they do not divide.
std::vector<std::vector<Piece>> split(
    const std::vector<Piece>& pieces,
    const std::vector<std::optional<int64_t>>& rows) {
  std::vector<std::vector<Piece>> parts;
  int64_t begin = 0;
  for (const auto count : row_counts(rows_of(pieces), rows)) {
    parts.push_back(rows_between(pieces, begin, count));
    begin += count;
  }
  return parts;
}

bool is_wanted(const WeightLayout::Rule& rule, const Shapes* wanted) {
  return wanted == nullptr ||
      std::any_of(
             rule.canonical_keys.begin(),
             rule.canonical_keys.end(),
             [&](const auto& key) { return wanted->count(key) > 0; });
}

/// Whether a rule before has told where a tensor of this rule is.
bool is_done(const WeightLayout::Rule& rule, const Canonical& canonical) {
  return std::any_of(
      rule.canonical_keys.begin(),
      rule.canonical_keys.end(),
      [&](const auto& key) {
        return canonical.tensors.count(key) + canonical.failed.count(key) > 0;
      });
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

/// The canonical tensors of one rule.
struct Read {
  std::vector<Joined> tensors;
  std::string problem;
};

Read read_rule(
    const WeightLayout::Rule& rule,
    const std::string& scope,
    std::vector<Piece> pieces,
    const std::vector<std::optional<int64_t>>& rows) {
  if (rule.tied) {
    const std::vector<Piece> others(std::next(pieces.begin()), pieces.end());
    return {{Joined{{pieces.front()}, others}}, ""};
  }
  std::vector<std::string> keys;
  for (const auto& key : rule.canonical_keys) {
    keys.push_back(key_at(scope, key));
  }
  const auto as_stored = pieces;
  Read read;
  if (rule.transposed && !are_matrices(pieces)) {
    read.problem = problem_text(keys, pieces, "which is no matrix");
    return read;
  }
  if (rule.transposed) {
    for (auto& piece : pieces) {
      piece.tensor = piece.tensor.t();
    }
  }
  const bool is_one = keys.size() == 1 && pieces.size() == 1;
  if (!is_one && !can_join(pieces)) {
    read.problem = problem_text(keys, as_stored, "which cannot be stacked");
    return read;
  }
  if (keys.size() == 1) {
    read.tensors.push_back({std::move(pieces), {}});
    return read;
  }
  for (auto& part : split(pieces, rows)) {
    read.tensors.push_back({std::move(part), {}});
  }
  if (read.tensors.empty()) {
    const auto why = format_text(
        "whose {} {} do not divide into {} parts",
        rows_of(pieces),
        rule.transposed ? "columns" : "rows",
        keys.size());
    read.problem = problem_text(keys, as_stored, why);
  }
  return read;
}

/// The pieces of all of a rule's canonical tensors.
std::vector<Piece> all_pieces(
    const Canonical& canonical,
    const WeightLayout::Rule& rule) {
  std::vector<Piece> pieces;
  for (const auto& key : rule.canonical_keys) {
    const auto& tensor = canonical.tensors.at(key);
    pieces.insert(pieces.end(), tensor.pieces.begin(), tensor.pieces.end());
  }
  return pieces;
}

/// The pieces as a rule's tensor has them. Transposed, rows stand side by side.
Joined stored(
    std::vector<Piece> pieces,
    const WeightLayout::Rule& rule,
    std::vector<Piece> copies = {}) {
  int64_t dimension = 0;
  if (rule.transposed) {
    for (auto& piece : pieces) {
      dimension = piece.tensor.dim() == 2 ? 1 : 0;
      piece.tensor = piece.tensor.t();
    }
  }
  return {std::move(pieces), std::move(copies), dimension};
}

} // namespace

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

Canonical to_canonical(
    const StateDict& state,
    const std::string& scope,
    const WeightLayout& layout,
    const Shapes* wanted) {
  Canonical result;
  for (const auto& rule : layout.rules()) {
    if (!is_wanted(rule, wanted) || is_done(rule, result)) {
      continue;
    }
    std::vector<Piece> pieces;
    for (auto& key : keys_of(state, scope, rule.file_key)) {
      auto tensor = state[key];
      pieces.push_back({{std::move(key)}, std::move(tensor)});
    }
    if (pieces.empty()) {
      continue;
    }
    auto read =
        read_rule(rule, scope, std::move(pieces), rows_wanted(rule, wanted));
    const auto& keys = rule.canonical_keys;
    if (!read.problem.empty()) {
      result.failed.insert(keys.begin(), keys.end());
      result.problems.push_back(std::move(read.problem));
      continue;
    }
    for (size_t i = 0; i < keys.size(); ++i) {
      result.tensors.emplace(keys[i], std::move(read.tensors[i]));
    }
  }
  return result;
}

Written from_canonical(
    const Canonical& canonical,
    const WeightLayout::Rule& rule,
    const std::vector<std::string>& keys,
    const std::vector<std::optional<int64_t>>& rows) {
  Written written;
  const auto& first = canonical.tensors.at(rule.canonical_keys.front());
  if (rule.tied) {
    for (const auto& key : keys) {
      written.tensors.emplace_back(key, first);
    }
    return written;
  }
  const auto pieces = all_pieces(canonical, rule);
  if (rule.transposed && !are_matrices(pieces)) {
    written.problem = problem_text(keys, pieces, "which is no matrix");
    return written;
  }
  if (keys.size() == 1 && rule.canonical_keys.size() == 1) {
    written.tensors.emplace_back(
        keys.front(), stored(pieces, rule, first.copies));
    return written;
  }
  if (!can_join(pieces)) {
    written.problem = problem_text(keys, pieces, "which cannot be stacked");
    return written;
  }
  const auto parts = split(pieces, rows);
  if (parts.empty()) {
    const auto why = format_text(
        "whose {} rows do not divide into {} parts",
        rows_of(pieces),
        keys.size());
    written.problem = problem_text(keys, pieces, why);
    return written;
  }
  for (size_t i = 0; i < keys.size(); ++i) {
    written.tensors.emplace_back(keys[i], stored(parts[i], rule));
  }
  return written;
}

std::vector<int64_t> shape_of(const Joined& joined) {
  auto shape = joined.pieces.front().tensor.sizes().vec();
  if (joined.pieces.size() > 1) {
    shape.front() = rows_of(joined.pieces);
  }
  return shape;
}

Shapes shapes_of(const Canonical& canonical) {
  Shapes shapes;
  for (const auto& [key, tensor] : canonical.tensors) {
    shapes.emplace(key, shape_of(tensor));
  }
  return shapes;
}

bool can_join(const std::vector<Piece>& pieces) {
  const auto first = pieces.front().tensor.sizes();
  return std::all_of(pieces.begin(), pieces.end(), [&](const Piece& piece) {
    const auto sizes = piece.tensor.sizes();
    return !sizes.empty() && sizes.size() == first.size() &&
        sizes.slice(1) == first.slice(1);
  });
}

Joined joined_zeros(
    torch::IntArrayRef shape,
    const torch::TensorOptions& options) {
  return {{{{}, torch::zeros({}, options).expand(shape)}}, {}};
}

} // namespace torch_attention
