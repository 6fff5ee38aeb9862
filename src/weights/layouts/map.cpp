#include <weights/layouts/map.h>

#include <format_text.h>
#include <weights/layouts/find.h>

#include <ATen/core/grad_mode.h>

#include <algorithm>
#include <map>
#include <optional>
#include <set>
#include <utility>

namespace torch_attention::weights::layouts {

namespace {

/// Maps a file to a module, one attention module after the other.
class ModuleMapper {
 public:
  ModuleMapper(
      const StateDict& file,
      const StateDict& module,
      const WeightLayout& layout,
      const Decide& decide)
      : file_(file),
        module_(module),
        layout_(layout),
        decide_(decide),
        modules_(find_attention(module)) {}

  Mapping map() {
    if (!layout_.is_automatic() && !is_there()) {
      result_.problems.push_back(not_there_text());
      return std::move(result_);
    }
    for (const auto& attention : modules_) {
      map_attention(attention);
    }
    list_sources();
    list_unused();
    result_.layout = format_text("{}", fmt::join(layouts_, ", "));
    return std::move(result_);
  }

 private:
  /// Returns whether the file has a tensor in the requested layout.
  bool is_there() const {
    const auto here = [&](const Attention& attention) {
      return is_there(attention);
    };
    return std::any_of(
        modules_.begin(), modules_.end(), [&](const Attention& attention) {
          const auto& inner = attention.inner;
          return here(attention) ||
              std::any_of(inner.begin(), inner.end(), here);
        });
  }

  bool is_there(const Attention& attention) const {
    return !layout_.is_automatic() &&
        has_layout(file_, attention.scope, layout_);
  }

  std::string not_there_text() const {
    if (modules_.empty()) {
      return format_text(
          "layout \"{}\" was asked for, but the module has no attention that "
          "it applies to.",
          layout_.name());
    }
    return format_text(
        "layout \"{}\" was asked for, but the file has no {}.",
        layout_.name(),
        names_looked_for(modules_.front().scope, layout_));
  }

  void map_attention(const Attention& attention) {
    // If several layouts fit the module, the file needs the module's own keys.
    if (attention.layouts.size() != 1) {
      return;
    }
    const auto& scope = attention.scope;
    const auto& form = attention.layouts.front();
    const bool is_explicit = is_there(attention);
    if (!is_explicit && has_all_of(scope, form)) {
      add_layout(form);
      return;
    }
    const auto shapes = shapes_of(to_canonical(module_, scope, form));
    const auto layouts = is_explicit ? std::vector<WeightLayout>{layout_}
                                     : layouts_at(file_, scope, &shapes);
    if (layouts.size() > 1) {
      refuse(scope, form, layouts);
    } else if (layouts.empty()) {
      for (const auto& inner : attention.inner) {
        map_attention(inner);
      }
    } else {
      const auto layout =
          is_explicit ? layouts.front() : decided(scope, layouts.front());
      add_layout(layout);
      if (!are_same(layout, form)) {
        map_from(layout, scope, form, shapes);
      }
    }
  }

  WeightLayout decided(const std::string& scope, const WeightLayout& found) {
    if (!decide_) {
      return found;
    }
    auto decision = decide_(scope, found);
    if (!decision.remark.empty() &&
        !contains(result_.remarks, decision.remark)) {
      result_.remarks.push_back(std::move(decision.remark));
    }
    return std::move(decision.layout);
  }

  /// Returns whether the file has all of the module's own keys, except masks.
  bool has_all_of(const std::string& scope, const WeightLayout& form) const {
    const auto keys = keys_read(module_, scope, form);
    const auto masks = mask_keys(scope, form);
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
      const std::string& scope,
      const WeightLayout& form,
      const std::vector<WeightLayout>& layouts) {
    set_refused(
        keys_read(module_, scope, form), ambiguous_text(scope, layouts));
    for (const auto& layout : layouts) {
      note_read(keys_read(file_, scope, layout));
      note_left_alone(layout, scope);
    }
  }

  /// Maps from the file to canonical tensors to the module, at one scope.
  void map_from(
      const WeightLayout& layout,
      const std::string& scope,
      const WeightLayout& form,
      const Shapes& shapes) {
    auto canonical = to_canonical(file_, scope, layout, &shapes);
    for (const auto& key : layout.zero_keys()) {
      const auto shape = shapes.find(key);
      if (shape != shapes.end()) {
        canonical.emplace(key, zeros_of(shape->second, torch::kFloat));
      }
    }
    for (const auto& rule : form.rules()) {
      const auto keys = keys_of(module_, scope, rule.file_key);
      if (!keys.empty()) {
        map_rule(canonical, layout, scope, rule, keys);
      }
    }
    for (const auto& item : canonical) {
      if (!item.second.is_found()) {
        note_read(item.second);
      }
    }
    note_left_alone(layout, scope);
  }

  /// Maps the module's tensors `keys`, which belong to one rule of its layout.
  void map_rule(
      const Sources& canonical,
      const WeightLayout& layout,
      const std::string& scope,
      const WeightLayout::Rule& rule,
      const std::vector<std::string>& keys) {
    bool is_complete = true;
    for (const auto& key : rule.canonical_keys) {
      const auto source = canonical.find(key);
      if (source == canonical.end()) {
        is_complete = false;
      } else if (!source->second.is_found()) {
        set_refused(keys, source->second.problem);
        return;
      }
    }
    if (!is_complete) {
      set_missing(
          keys, rule, names_in_file(scope, layout, rule.canonical_keys));
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
    auto sources = from_canonical(canonical, rule, keys, rows);
    for (size_t i = 0; i < keys.size(); ++i) {
      auto& source = sources[i];
      note_read(source);
      if (source.is_found() && source.keys().empty()) {
        source.state = Source::State::kZeros;
        source.parts.clear();
      }
      sources_.emplace(keys[i], std::move(source));
    }
  }

  void set_refused(
      const std::vector<std::string>& keys,
      const std::string& problem) {
    for (const auto& key : keys) {
      auto& source = sources_[key];
      source.state = Source::State::kRefused;
      source.problem = problem;
    }
  }

  /// Records that the file lacks the tensors in `looked_for`. If that is empty,
  /// the layout has no rule for them, and they may have their own names.
  void set_missing(
      const std::vector<std::string>& keys,
      const WeightLayout::Rule& rule,
      const std::string& looked_for) {
    const bool is_mask = rule.canonical_keys.front() == kMaskKey;
    for (const auto& key : keys) {
      if (!looked_for.empty() || is_mask) {
        auto& source = sources_[key];
        source.state = looked_for.empty() ? Source::State::kWithoutMask
                                          : Source::State::kMissing;
        source.looked_for = looked_for;
      }
    }
  }

  /// Lists all sources in the module's order. Tensors without a rule in any
  /// layout are loaded by their own names.
  void list_sources() {
    std::set<std::string> known;
    for (const auto& item : module_) {
      const auto& key = item.key();
      auto source = source_of(key);
      if (!source.problem.empty() && known.insert(source.problem).second) {
        result_.problems.push_back(source.problem);
      }
      result_.sources.emplace_back(key, std::move(source));
    }
  }

  Source source_of(const std::string& key) {
    const auto mapped = sources_.find(key);
    const bool is_mapped = mapped != sources_.end();
    const auto* same_name = file_.find(key);
    if (is_mapped && mapped->second.state != Source::State::kWithoutMask) {
      return std::move(mapped->second);
    }
    Source source;
    if (same_name != nullptr) {
      read_.insert(key);
      source.parts.push_back({key, *same_name});
    } else if (is_mapped) {
      source.state = Source::State::kWithoutMask;
    } else {
      source.state = Source::State::kMissing;
      source.looked_for = key;
    }
    return source;
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

  void note_read(const Source& source) {
    for (const auto* parts : {&source.parts, &source.copies}) {
      for (const auto& part : *parts) {
        read_.insert(part.key);
      }
    }
  }

  /// Marks the tensors that `layout` ignores on purpose.
  void note_left_alone(const WeightLayout& layout, const std::string& scope) {
    note_read(keys_at(file_, scope, layout.ignored()));
    note_read(keys_at(file_, scope, layout.outside_keys()));
    result_.places.emplace_back(scope, layout);
  }

  void add_layout(const WeightLayout& layout) {
    if (!contains(layouts_, layout.name())) {
      layouts_.push_back(layout.name());
    }
  }

  const StateDict& file_;
  const StateDict& module_;
  const WeightLayout& layout_;
  const Decide& decide_;
  std::vector<Attention> modules_;

  Mapping result_;
  std::vector<std::string> layouts_;
  /// By the module's keys, for tensors with a rule in a layout.
  std::map<std::string, Source> sources_;
  /// The file's keys that are read or ignored.
  std::set<std::string> read_;
};

} // namespace

bool Mapping::leaves(const std::string& key) const {
  StateDict names;
  names.insert(key, {});
  return std::any_of(places.begin(), places.end(), [&](const auto& place) {
    const auto& [scope, its_layout] = place;
    return !keys_at(names, scope, its_layout.ignored()).empty() ||
        !keys_at(names, scope, its_layout.outside_keys()).empty();
  });
}

Mapping map_to_module(
    const StateDict& file,
    const StateDict& module,
    const WeightLayout& layout,
    const Decide& decide) {
  const torch::NoGradGuard no_grad;
  return ModuleMapper(file, module, layout, decide).map();
}

} // namespace torch_attention::weights::layouts
