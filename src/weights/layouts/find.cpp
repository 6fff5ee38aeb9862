#include <weights/layouts/find.h>

#include <format_text.h>

#include <algorithm>
#include <array>
#include <iterator>
#include <numeric>
#include <set>
#include <unordered_map>
#include <utility>

namespace torch_attention::weights::layouts {

namespace {

constexpr std::array<const char*, 3> kProjections = {
    "W_query.weight",
    "W_key.weight",
    "W_value.weight"};

bool feeds(const WeightLayout::Rule& rule, const std::string& canonical_key) {
  return contains(rule.canonical_keys, canonical_key);
}

/// Returns whether `layout` reads a canonical tensor at `scope`.
bool has(
    const StateDict& state,
    const std::string& scope,
    const WeightLayout& layout,
    const std::string& canonical_key) {
  return std::any_of(
      layout.rules().begin(), layout.rules().end(), [&](const auto& rule) {
        return feeds(rule, canonical_key) &&
            !keys_of(state, scope, rule.file_key).empty();
      });
}

/// Returns how many of the weights of query, key and value `layout` reads.
size_t count_projections(
    const StateDict& state,
    const std::string& scope,
    const WeightLayout& layout) {
  return static_cast<size_t>(std::count_if(
      kProjections.begin(), kProjections.end(), [&](const char* key) {
        return has(state, scope, layout, key);
      }));
}

/// Returns whether the heads that `layout` lists have an output projection
/// each. Then they are separate attention modules, not the heads of one.
bool lists_modules(
    const StateDict& state,
    const std::string& scope,
    const WeightLayout& layout) {
  for (const auto& rule : layout.rules()) {
    const auto heads = rule.file_key.find(".{}");
    if (heads == std::string::npos) {
      continue;
    }
    const auto first = key_at(scope, rule.file_key.substr(0, heads) + ".0");
    return std::any_of(
        layouts_to_find().begin(),
        layouts_to_find().end(),
        [&](const WeightLayout& inner) {
          return count_projections(state, first, inner) > 0 &&
              has(state, first, inner, "out_proj.weight");
        });
  }
  return false;
}

/// Returns the layouts that read at least `count` of the three projections.
std::vector<WeightLayout> layouts_with(
    const StateDict& state,
    const std::string& scope,
    const std::vector<WeightLayout>& layouts,
    size_t count) {
  std::vector<WeightLayout> result;
  for (const auto& layout : layouts) {
    if (count_projections(state, scope, layout) >= count &&
        !lists_modules(state, scope, layout)) {
      result.push_back(layout);
    }
  }
  return result;
}

/// Restricts `layouts` to those for which `is_better` is true, if there are
/// any.
template <typename Predicate>
void prefer(std::vector<WeightLayout>& layouts, const Predicate& is_better) {
  std::vector<WeightLayout> better;
  std::copy_if(
      layouts.begin(), layouts.end(), std::back_inserter(better), is_better);
  if (!better.empty()) {
    layouts = std::move(better);
  }
}

/// Returns whether two layouts read the same canonical tensors.
bool give_the_same(
    const StateDict& state,
    const std::string& scope,
    const WeightLayout& a,
    const WeightLayout& b) {
  const auto same_part = [](const Part& x, const Part& y) {
    return x.key == y.key && x.tensor.is_set_to(y.tensor);
  };
  const auto of_a = to_canonical(state, scope, a);
  const auto of_b = to_canonical(state, scope, b);
  return of_a.size() == of_b.size() &&
      std::equal(of_a.begin(), of_a.end(), of_b.begin(), [&](auto& x, auto& y) {
           const auto& parts = x.second.parts;
           const auto& others = y.second.parts;
           return x.first == y.first && x.second.state == y.second.state &&
               std::equal(
                      parts.begin(),
                      parts.end(),
                      others.begin(),
                      others.end(),
                      same_part);
         });
}

/// Returns whether `b` reads all the keys that `a` reads, and further ones.
bool reads_less(
    const StateDict& state,
    const std::string& scope,
    const WeightLayout& a,
    const WeightLayout& b) {
  const auto of_a = keys_read(state, scope, a);
  const auto of_b = keys_read(state, scope, b);
  return of_a.size() < of_b.size() &&
      std::includes(of_b.begin(), of_b.end(), of_a.begin(), of_a.end());
}

/// Returns whether the projections have the shapes that the module needs.
bool have_shapes(
    const StateDict& state,
    const std::string& scope,
    const WeightLayout& layout,
    const Shapes& wanted) {
  const auto shapes = shapes_of(to_canonical(state, scope, layout, &wanted));
  return std::all_of(
      kProjections.begin(), kProjections.end(), [&](const char* key) {
        const auto found = shapes.find(key);
        const auto needed = wanted.find(key);
        return found != shapes.end() && needed != wanted.end() &&
            found->second == needed->second;
      });
}

/// Chooses between layouts whose weights exist by their other tensors and by
/// the shapes. Returns several layouts if that is ambiguous.
std::vector<WeightLayout> choose(
    const StateDict& state,
    const std::string& scope,
    std::vector<WeightLayout> layouts,
    const Shapes* wanted) {
  if (layouts.empty()) {
    return layouts;
  }
  const auto all = layouts;
  prefer(layouts, [&](const WeightLayout& layout) {
    return std::none_of(all.begin(), all.end(), [&](const WeightLayout& other) {
      return reads_less(state, scope, layout, other);
    });
  });
  if (layouts.size() > 1) {
    prefer(layouts, [&](const WeightLayout& layout) {
      const auto canonical = to_canonical(state, scope, layout);
      return std::all_of(
                 canonical.begin(),
                 canonical.end(),
                 [](const auto& item) { return item.second.is_found(); }) &&
          are_consistent(shapes_of(canonical));
    });
  }
  if (layouts.size() > 1 && wanted != nullptr) {
    prefer(layouts, [&](const WeightLayout& layout) {
      return have_shapes(state, scope, layout, *wanted);
    });
  }
  const bool is_clear = std::all_of(
      layouts.begin(), layouts.end(), [&](const WeightLayout& layout) {
        return give_the_same(state, scope, layouts.front(), layout);
      });
  if (is_clear) {
    layouts.erase(std::next(layouts.begin()), layouts.end());
  }
  return layouts;
}

/// Returns the paths in `state` below which a tensor has the name of the query
/// weight in one of `layouts`, in the order of `state`.
std::vector<std::string> possible_scopes(
    const StateDict& state,
    const std::vector<WeightLayout>& layouts) {
  std::vector<std::string> names;
  for (const auto& layout : layouts) {
    for (const auto& rule : layout.rules()) {
      if (feeds(rule, kProjections.front())) {
        names.push_back("." + keys_for_heads("", rule.file_key, 1).front());
      }
    }
  }
  std::vector<std::string> scopes;
  std::set<std::string> known;
  const auto add = [&](const std::string& scope) {
    if (known.insert(scope).second) {
      scopes.push_back(scope);
    }
  };
  for (const auto& item : state) {
    const auto& key = item.key();
    for (const auto& name : names) {
      if (key.size() + 1 == name.size() && ends_with(name, key)) {
        add("");
      } else if (ends_with(key, name)) {
        add(key.substr(0, key.size() - name.size()));
      }
    }
  }
  return scopes;
}

/// Returns the innermost module found so far that contains `scope` and reads
/// its tensor `key` as well.
std::optional<size_t> find_outer(
    const std::vector<std::vector<std::string>>& keys_of_found,
    const std::unordered_map<std::string, size_t>& by_scope,
    std::string scope,
    const std::string& key,
    size_t levels) {
  for (size_t level = 0; level < levels && !scope.empty(); ++level) {
    const auto dot = scope.rfind('.');
    scope.resize(dot == std::string::npos ? 0 : dot);
    const auto found = by_scope.find(scope);
    if (found != by_scope.end()) {
      const auto& keys = keys_of_found[found->second];
      if (std::binary_search(keys.begin(), keys.end(), key)) {
        return found->second;
      }
    }
  }
  return std::nullopt;
}

/// Returns the largest number of dots in a key of `layouts`.
size_t depth_of(const std::vector<WeightLayout>& layouts) {
  size_t depth = 0;
  for (const auto& layout : layouts) {
    for (const auto& rule : layout.rules()) {
      const auto& key = rule.file_key;
      const auto dots = std::count(key.begin(), key.end(), '.');
      depth = std::max(depth, static_cast<size_t>(dots));
    }
  }
  return depth;
}

std::vector<int64_t> shape_at(const Shapes& shapes, const std::string& key) {
  const auto found = shapes.find(key);
  return found == shapes.end() ? std::vector<int64_t>{} : found->second;
}

} // namespace

const std::vector<WeightLayout>& layouts_to_find() {
  static const auto layouts = [] {
    std::vector<WeightLayout> result;
    for (auto& layout : WeightLayout::built_in()) {
      // They have the keys of `query_key_value` and `query_key_value_heads`.
      if (layout.name() != WeightLayout::value_as_key().name() &&
          layout.name() != WeightLayout::value_as_key_heads().name()) {
        result.push_back(std::move(layout));
      }
    }
    return result;
  }();
  return layouts;
}

std::vector<WeightLayout> layouts_at(
    const StateDict& state,
    const std::string& scope,
    const Shapes* wanted) {
  const auto& layouts = layouts_to_find();
  const auto whole = layouts_with(state, scope, layouts, kProjections.size());
  if (!whole.empty()) {
    return choose(state, scope, whole, wanted);
  }
  auto in_part =
      choose(state, scope, layouts_with(state, scope, layouts, 1), wanted);
  return in_part.size() == 1 ? in_part : std::vector<WeightLayout>();
}

std::vector<Attention> find_attention(
    const StateDict& state,
    const std::vector<WeightLayout>& layouts) {
  const auto scopes = possible_scopes(state, layouts);
  std::vector<size_t> order(scopes.size());
  std::iota(order.begin(), order.end(), size_t{0});
  // The outermost first, since each of its heads may look like a module.
  std::stable_sort(order.begin(), order.end(), [&](size_t a, size_t b) {
    return scopes[a].size() < scopes[b].size();
  });
  const auto levels = depth_of(layouts);
  std::vector<Attention> found;
  std::vector<size_t> positions;
  std::vector<std::vector<std::string>> keys_of_found;
  std::unordered_map<std::string, size_t> by_scope;
  for (const auto position : order) {
    const auto& scope = scopes[position];
    auto whole = layouts_with(state, scope, layouts, kProjections.size());
    if (whole.empty()) {
      continue;
    }
    Attention attention{
        scope, choose(state, scope, std::move(whole), nullptr), {}};
    auto keys = keys_read(state, scope, attention.layouts.front());
    const auto outer =
        find_outer(keys_of_found, by_scope, scope, keys.front(), levels);
    if (outer.has_value()) {
      found[*outer].inner.push_back(std::move(attention));
      continue;
    }
    by_scope.emplace(scope, found.size());
    keys_of_found.push_back(std::move(keys));
    positions.push_back(position);
    found.push_back(std::move(attention));
  }
  // Restores the order of `state`.
  std::vector<size_t> sorted(found.size());
  std::iota(sorted.begin(), sorted.end(), size_t{0});
  std::sort(sorted.begin(), sorted.end(), [&](size_t a, size_t b) {
    return positions[a] < positions[b];
  });
  std::vector<Attention> result;
  result.reserve(found.size());
  for (const auto i : sorted) {
    result.push_back(std::move(found[i]));
  }
  return result;
}

bool are_consistent(const Shapes& shapes) {
  for (const std::string layer : {"W_query", "W_key", "W_value", "out_proj"}) {
    const auto weight = shape_at(shapes, layer + ".weight");
    const auto bias = shape_at(shapes, layer + ".bias");
    if (!weight.empty() && weight.size() != 2) {
      return false;
    }
    if (!weight.empty() && !bias.empty() &&
        bias != std::vector<int64_t>{weight.front()}) {
      return false;
    }
  }
  const auto query = shape_at(shapes, "W_query.weight");
  const auto key = shape_at(shapes, "W_key.weight");
  const auto value = shape_at(shapes, "W_value.weight");
  const auto out = shape_at(shapes, "out_proj.weight");
  if (!query.empty() && !key.empty() &&
      (key.front() == 0 || query.front() % key.front() != 0)) {
    return false;
  }
  // There are as many key heads as value heads, but their sizes may differ.
  return query.empty() || key.empty() || value.empty() || out.empty() ||
      out.back() * key.front() == query.front() * value.front();
}

bool are_same(const WeightLayout& a, const WeightLayout& b) {
  const auto same_rule = [](const WeightLayout::Rule& x,
                            const WeightLayout::Rule& y) {
    return x.file_key == y.file_key && x.canonical_keys == y.canonical_keys &&
        x.transposed == y.transposed && x.tied == y.tied &&
        x.stacked == y.stacked && x.groups == y.groups && x.shares == y.shares;
  };
  return a.name() == b.name() &&
      std::equal(
             a.rules().begin(),
             a.rules().end(),
             b.rules().begin(),
             b.rules().end(),
             same_rule);
}

std::optional<int64_t> heads_of(
    const StateDict& state,
    const std::string& scope,
    const WeightLayout& layout) {
  for (const auto& rule : layout.rules()) {
    if (lists_heads(rule.file_key) && !rule.tied && !rule.stacked) {
      return static_cast<int64_t>(keys_of(state, scope, rule.file_key).size());
    }
  }
  return std::nullopt;
}

std::vector<std::string> keys_read(
    const StateDict& state,
    const std::string& scope,
    const WeightLayout& layout) {
  std::set<std::string> keys;
  for (const auto& rule : layout.rules()) {
    const auto of_rule = keys_of(state, scope, rule.file_key);
    keys.insert(of_rule.begin(), of_rule.end());
  }
  return {keys.begin(), keys.end()};
}

std::string names_in_file(
    const std::string& scope,
    const WeightLayout& layout,
    const std::vector<std::string>& canonical_keys) {
  std::vector<std::string> names;
  for (const auto& rule : layout.rules()) {
    const bool is_asked = std::any_of(
        canonical_keys.begin(), canonical_keys.end(), [&](const auto& key) {
          return feeds(rule, key);
        });
    if (is_asked) {
      names.push_back(keys_for_heads(scope, rule.file_key, 1).front());
    }
  }
  names.erase(std::unique(names.begin(), names.end()), names.end());
  return list_text(names, " or ");
}

std::string names_looked_for(
    const std::string& scope,
    const WeightLayout& layout) {
  auto names =
      names_in_file(scope, layout, {kProjections.begin(), kProjections.end()});
  if (!names.empty()) {
    return names;
  }
  std::vector<std::string> all;
  for (const auto& rule : layout.rules()) {
    all.push_back(keys_for_heads(scope, rule.file_key, 1).front());
  }
  return all.empty() ? "tensor that it names: it has no rules"
                     : list_text(all, " or ");
}

bool has_layout(
    const StateDict& state,
    const std::string& scope,
    const WeightLayout& layout) {
  const bool has_projections = std::any_of(
      layout.rules().begin(), layout.rules().end(), [](const auto& rule) {
        return std::any_of(
            kProjections.begin(), kProjections.end(), [&](const char* key) {
              return feeds(rule, key);
            });
      });
  return has_projections ? count_projections(state, scope, layout) > 0
                         : !keys_read(state, scope, layout).empty();
}

std::vector<std::string> keys_at(
    const StateDict& state,
    const std::string& scope,
    const std::vector<std::string>& file_keys) {
  std::vector<std::string> keys;
  for (const auto& file_key : file_keys) {
    const auto found = keys_of(state, scope, file_key);
    keys.insert(keys.end(), found.begin(), found.end());
  }
  return keys;
}

std::string scope_text(const std::string& scope) {
  return scope.empty() ? "the root" : format_text("\"{}\"", scope);
}

std::string ambiguous_text(
    const std::string& scope,
    const std::vector<WeightLayout>& layouts) {
  return format_text(
      "cannot tell the layout of the attention at {}: the keys fit \"{}\", and "
      "the shapes do not decide. Say which, as in "
      "LoadOptions().layout(WeightLayout::{}()).",
      scope_text(scope),
      fmt::join(names_of(layouts), "\" and \""),
      layouts.front().name());
}

std::vector<std::string> names_of(const std::vector<WeightLayout>& layouts) {
  std::vector<std::string> names;
  names.reserve(layouts.size());
  for (const auto& layout : layouts) {
    names.push_back(layout.name());
  }
  return names;
}

} // namespace torch_attention::weights::layouts
