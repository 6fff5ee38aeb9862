#include <weights/layouts/map.h>

#include <format_text.h>
#include <weights/layouts/find.h>
#include <weights/layouts/rules.h>

#include <c10/util/Exception.h>

#include <algorithm>
#include <map>
#include <set>
#include <string_view>
#include <unordered_set>
#include <utility>

namespace torch_attention {

namespace {

Source to_source(const Joined& joined) {
  Source source;
  source.dimension = joined.dimension;
  std::unordered_set<std::string_view> known;
  for (const auto& piece : joined.pieces) {
    for (const auto& key : piece.keys) {
      if (known.insert(key).second) {
        source.keys.push_back(key);
      }
    }
    source.parts.push_back(piece.tensor);
  }
  if (source.keys.empty()) {
    source.parts.clear();
    source.zeros = true;
  }
  for (const auto& copy : joined.copies) {
    source.copies.emplace_back(copy.keys.front(), copy.tensor);
  }
  return source;
}

/// Maps a file to a module, one attention module after the other.
class ModuleMapper {
 public:
  ModuleMapper(
      const StateDict& file,
      const StateDict& module,
      const WeightLayout& layout)
      : file_(file),
        module_(module),
        layout_(layout),
        places_(find_places(module)) {}

  Mapping map() {
    if (!layout_.is_automatic() && !is_there()) {
      result_.problems.push_back(not_there_text());
      return std::move(result_);
    }
    for (const auto& place : places_) {
      map_place(place);
    }
    map_by_name();
    list_unused();
    result_.layout = format_text("{}", fmt::join(layouts_, ", "));
    return std::move(result_);
  }

 private:
  /// Whether the layout that was asked for has a tensor in the file.
  bool is_there() const {
    return std::any_of(places_.begin(), places_.end(), [&](const Place& place) {
      return is_there(place) ||
          std::any_of(
                 place.inner.begin(),
                 place.inner.end(),
                 [&](const auto& inner) { return is_there(inner); });
    });
  }

  bool is_there(const Place& place) const {
    return !layout_.is_automatic() && has_layout(file_, place.scope, layout_);
  }

  std::string not_there_text() const {
    if (places_.empty()) {
      return format_text(
          "layout \"{}\" was asked for, but the module has no attention that "
          "it applies to.",
          layout_.name());
    }
    return format_text(
        "layout \"{}\" was asked for, but the file has no {}.",
        layout_.name(),
        names_looked_for(places_.front().scope, layout_));
  }

  void map_place(const Place& place) {
    // Several layouts fit the module: only its own keys can.
    if (!place.choice.layout.has_value()) {
      return;
    }
    const auto& form = *place.choice.layout;
    const auto needed = to_canonical(module_, place.scope, form);
    const auto shapes = shapes_of(needed);
    const bool is_explicit = is_there(place);
    if (!is_explicit && has_all_of(place, form)) {
      add_layout(form);
      return;
    }
    const auto choice = is_explicit ? Choice{layout_, {}}
                                    : find_layout(file_, place.scope, &shapes);
    if (!choice.ambiguous.empty()) {
      refuse(place, form, choice.ambiguous);
    } else if (!choice.layout.has_value()) {
      for (const auto& inner : place.inner) {
        map_place(inner);
      }
    } else {
      add_layout(*choice.layout);
      if (!are_same(*choice.layout, form)) {
        map_from(*choice.layout, place.scope, form, shapes);
      }
    }
  }

  /// Whether the file has the module's own keys, but for masks.
  bool has_all_of(const Place& place, const WeightLayout& form) const {
    const auto keys = keys_read(module_, place.scope, form);
    const auto masks = mask_keys(place.scope, form);
    return std::all_of(keys.begin(), keys.end(), [&](const auto& key) {
      return file_.contains(key) || contains(masks, key);
    });
  }

  std::vector<std::string> mask_keys(
      const std::string& scope,
      const WeightLayout& form) const {
    std::vector<std::string> keys;
    for (const auto& rule : form.rules()) {
      if (rule.canonical_keys.front() == kMaskKey) {
        keys = keys_of(module_, scope, rule.file_key);
      }
    }
    return keys;
  }

  void refuse(
      const Place& place,
      const WeightLayout& form,
      const std::vector<WeightLayout>& layouts) {
    result_.problems.push_back(ambiguous_text(place.scope, layouts));
    for (const auto& key : keys_read(module_, place.scope, form)) {
      settled_.insert(key);
    }
    for (const auto& layout : layouts) {
      note_read(keys_read(file_, place.scope, layout));
      note_read(keys_at(file_, place.scope, layout.ignored()));
      note_read(keys_at(file_, place.scope, layout.outside_keys()));
    }
  }

  /// file -> canonical -> module, at one scope.
  void map_from(
      const WeightLayout& layout,
      const std::string& scope,
      const WeightLayout& form,
      const Shapes& shapes) {
    auto canonical = to_canonical(file_, scope, layout, &shapes);
    result_.problems.insert(
        result_.problems.end(),
        canonical.problems.begin(),
        canonical.problems.end());
    for (const auto& rule : layout.rules()) {
      if (is_failed(canonical, rule)) {
        note_read(keys_of(file_, scope, rule.file_key));
      }
    }
    add_zeros(canonical, layout, shapes);
    for (const auto& rule : form.rules()) {
      const auto keys = keys_of(module_, scope, rule.file_key);
      if (!keys.empty()) {
        map_rule(canonical, layout, scope, rule, keys);
      }
    }
    note_read(keys_at(file_, scope, layout.ignored()));
    note_read(keys_at(file_, scope, layout.outside_keys()));
  }

  static bool is_failed(
      const Canonical& canonical,
      const WeightLayout::Rule& rule) {
    return std::any_of(
        rule.canonical_keys.begin(),
        rule.canonical_keys.end(),
        [&](const auto& key) { return canonical.failed.count(key) > 0; });
  }

  static void add_zeros(
      Canonical& canonical,
      const WeightLayout& layout,
      const Shapes& shapes) {
    for (const auto& key : layout.zero_keys()) {
      const auto shape = shapes.find(key);
      if (shape != shapes.end() && canonical.failed.count(key) == 0) {
        canonical.tensors.emplace(
            key, joined_zeros(shape->second, torch::kFloat));
      }
    }
  }

  /// The module's tensors `keys` of one rule of its form.
  void map_rule(
      const Canonical& canonical,
      const WeightLayout& layout,
      const std::string& scope,
      const WeightLayout::Rule& rule,
      const std::vector<std::string>& keys) {
    if (is_failed(canonical, rule)) {
      settled_.insert(keys.begin(), keys.end());
      return;
    }
    const bool is_complete = std::all_of(
        rule.canonical_keys.begin(),
        rule.canonical_keys.end(),
        [&](const auto& key) { return canonical.tensors.count(key) > 0; });
    if (!is_complete) {
      note_missing(keys, names_in_file(scope, layout, rule.canonical_keys));
      if (rule.canonical_keys.front() == kMaskKey) {
        maskless_.insert(keys.begin(), keys.end());
      }
      return;
    }
    std::vector<std::optional<int64_t>> rows;
    for (const auto& key : keys) {
      const auto shape = module_[key].sizes();
      rows.push_back(
          shape.empty() ? std::nullopt
                        : std::make_optional(
                              rule.transposed ? shape.back() : shape.front()));
    }
    auto written = from_canonical(canonical, rule, keys, rows);
    if (!written.problem.empty()) {
      result_.problems.push_back(std::move(written.problem));
      settled_.insert(keys.begin(), keys.end());
      for (const auto& key : rule.canonical_keys) {
        note_read(canonical.tensors.at(key));
      }
    }
    for (const auto& [key, joined] : written.tensors) {
      sources_.emplace(key, to_source(joined));
      note_read(joined);
    }
  }

  /// What no layout speaks of, by its own name; and all in the module's order.
  void map_by_name() {
    for (const auto& item : module_) {
      const auto& key = item.key();
      const auto mapped = sources_.find(key);
      const auto looked_for = looked_for_.find(key);
      const auto* same_name = file_.find(key);
      if (mapped != sources_.end()) {
        result_.sources.emplace_back(key, std::move(mapped->second));
      } else if (settled_.count(key) > 0) {
        continue;
      } else if (looked_for != looked_for_.end()) {
        result_.missing.push_back({key, looked_for->second});
      } else if (same_name != nullptr) {
        read_.insert(key);
        result_.sources.emplace_back(
            key, Source{{*same_name}, {key}, /*zeros=*/false, {}});
      } else if (maskless_.count(key) > 0) {
        result_.without_mask.push_back(key);
      } else {
        result_.missing.push_back({key, key});
      }
    }
  }

  void note_missing(
      const std::vector<std::string>& keys,
      const std::string& looked_for) {
    // Else the layout says nothing about them: they may have their own names.
    if (!looked_for.empty()) {
      for (const auto& key : keys) {
        looked_for_[key] = looked_for;
      }
    }
  }

  void list_unused() {
    for (const auto& item : file_) {
      if (read_.count(item.key()) == 0) {
        result_.unused.push_back(item.key());
      }
    }
  }

  void note_read(const std::vector<std::string>& keys) {
    read_.insert(keys.begin(), keys.end());
  }

  void note_read(const Joined& joined) {
    for (const auto& piece : joined.pieces) {
      note_read(piece.keys);
    }
    for (const auto& copy : joined.copies) {
      note_read(copy.keys);
    }
  }

  void add_layout(const WeightLayout& layout) {
    if (!contains(layouts_, layout.name())) {
      layouts_.push_back(layout.name());
    }
  }

  const StateDict& file_;
  const StateDict& module_;
  const WeightLayout& layout_;
  std::vector<Place> places_;

  Mapping result_;
  std::vector<std::string> layouts_;
  std::map<std::string, Source> sources_;
  /// Module keys that a problem speaks of.
  std::set<std::string> settled_;
  /// Masks of the module where the file's layout has none.
  std::set<std::string> maskless_;
  /// What a tensor of the module is called in the file, which has none.
  std::map<std::string, std::string> looked_for_;
  /// File keys.
  std::set<std::string> read_;
};

} // namespace

Mapping map_to_module(
    const StateDict& file,
    const StateDict& module,
    const WeightLayout& layout) {
  const torch::NoGradGuard no_grad;
  return ModuleMapper(file, module, layout).map();
}

} // namespace torch_attention
