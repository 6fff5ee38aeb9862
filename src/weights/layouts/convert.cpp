#include <format_text.h>
#include <weights/layouts/map.h>

#include <weights/layouts/find.h>
#include <weights/layouts/rules.h>

#include <c10/util/Exception.h>

#include <algorithm>
#include <map>
#include <set>
#include <utility>

namespace torch_attention {

namespace {

std::string shapes_text(const Shapes& shapes) {
  std::vector<std::string> texts;
  for (const auto& [key, shape] : shapes) {
    texts.push_back(format_text("{} {}", key, shape_text(shape)));
  }
  return list_text(texts, ", ");
}

/// The number of heads that `layout` lists at `scope`.
std::optional<int64_t> heads_of(
    const StateDict& file,
    const std::string& scope,
    const WeightLayout& layout) {
  for (const auto& rule : layout.rules()) {
    if (lists_heads(rule.file_key) && !rule.tied) {
      return static_cast<int64_t>(keys_of(file, scope, rule.file_key).size());
    }
  }
  return std::nullopt;
}

/// Rewrites one attention module of a file.
class PlaceConverter {
 public:
  PlaceConverter(
      const StateDict& from,
      std::string scope,
      const WeightLayout& source,
      const WeightLayout& target,
      std::optional<int64_t> num_heads)
      : scope_(std::move(scope)),
        source_(source),
        target_(target),
        canonical_(to_canonical(from, scope_, source)),
        num_heads_(num_heads) {
    const auto listed = heads_of(from, scope_, source);
    TORCH_CHECK(
        !listed || !num_heads || *listed == *num_heads,
        format_text(
            "expected num_heads = {}, the number of heads in {}, but got {}",
            listed.value_or(0),
            scope_text(scope_),
            num_heads.value_or(0)));
    if (listed.has_value()) {
      num_heads_ = listed;
    }
  }

  /// The tensors in the target's layout.
  StateDict convert() {
    check_source();
    add_zeros();
    for (const auto& rule : target_.rules()) {
      if (can_write(rule)) {
        write(rule);
      }
    }
    for (const auto& item : canonical_.tensors) {
      TORCH_CHECK(
          item.first == kMaskKey || written_.count(item.first) > 0,
          format_text(
              "layout \"{}\" has no place for {} of {}",
              target_.name(),
              item.first,
              scope_text(scope_)));
    }
    return std::move(result_);
  }

  /// The source's mask, if the target has none.
  std::vector<std::string> left_out() const {
    std::vector<std::string> keys;
    const auto mask = canonical_.tensors.find(kMaskKey);
    if (mask != canonical_.tensors.end() && written_.count(kMaskKey) == 0) {
      for (const auto& piece : mask->second.pieces) {
        keys.insert(keys.end(), piece.keys.begin(), piece.keys.end());
      }
      for (const auto& copy : mask->second.copies) {
        keys.insert(keys.end(), copy.keys.begin(), copy.keys.end());
      }
    }
    return keys;
  }

 private:
  void check_source() const {
    TORCH_CHECK(
        canonical_.problems.empty(), list_text(canonical_.problems, "\n\t"));
    const auto shapes = shapes_of(canonical_);
    TORCH_CHECK(
        are_consistent(shapes),
        format_text(
            "the shapes of {} are not those of one attention in layout \"{}\": "
            "{}",
            scope_text(scope_),
            source_.name(),
            shapes_text(shapes)));
    for (const auto& [key, tensor] : canonical_.tensors) {
      for (const auto& copy : tensor.copies) {
        check_equal(
            tensor.pieces.front().keys.front(),
            tensor.pieces.front().tensor,
            copy.keys.front(),
            copy.tensor);
      }
    }
  }

  /// Biases that the source's class has not and the target's has.
  void add_zeros() {
    const bool has_bias = canonical_.tensors.count("W_query.bias") > 0;
    for (const auto& key : source_.zero_keys()) {
      const bool is_needed = key == "out_proj.bias" || has_bias;
      const auto& others = target_.zero_keys();
      const auto weight =
          canonical_.tensors.find(key.substr(0, key.find('.')) + ".weight");
      if (is_needed && !contains(others, key) &&
          weight != canonical_.tensors.end()) {
        const auto rows = shape_of(weight->second).front();
        canonical_.tensors.emplace(
            key,
            joined_zeros(
                {rows}, weight->second.pieces.front().tensor.options()));
      }
    }
  }

  /// Whether the rule's tensors are there, not yet written, and of shapes that
  /// can be joined.
  bool can_write(const WeightLayout::Rule& rule) const {
    std::vector<Piece> pieces;
    for (const auto& key : rule.canonical_keys) {
      const auto tensor = canonical_.tensors.find(key);
      if (tensor == canonical_.tensors.end() || written_.count(key) > 0) {
        return false;
      }
      pieces.insert(
          pieces.end(),
          tensor->second.pieces.begin(),
          tensor->second.pieces.end());
    }
    return pieces.size() == 1 || can_join(pieces);
  }

  void write(const WeightLayout::Rule& rule) {
    const auto keys = keys_for_heads(scope_, rule.file_key, check_heads(rule));
    auto written = from_canonical(
        canonical_,
        rule,
        keys,
        std::vector<std::optional<int64_t>>(keys.size()));
    TORCH_CHECK(written.problem.empty(), written.problem);
    for (const auto& [key, joined] : written.tensors) {
      add(key, joined, rule);
    }
    written_.insert(rule.canonical_keys.begin(), rule.canonical_keys.end());
  }

  /// The number of heads, if the rule needs it.
  int64_t check_heads(const WeightLayout::Rule& rule) const {
    if (!lists_heads(rule.file_key)) {
      return 1;
    }
    TORCH_CHECK(
        num_heads_.has_value() && *num_heads_ > 0,
        format_text(
            "layout \"{}\" lists the heads: expected their number, num_heads",
            target_.name()));
    const auto shapes = shapes_of(canonical_);
    TORCH_CHECK(
        shapes.at("W_query.weight").front() ==
            shapes.at("W_key.weight").front(),
        format_text(
            "layout \"{}\" lists the heads, each with its own keys and values, "
            "but those of {} are shared: {}",
            target_.name(),
            scope_text(scope_),
            shapes_text(shapes)));
    return *num_heads_;
  }

  void add(
      const std::string& key,
      const Joined& joined,
      const WeightLayout::Rule& rule) {
    std::vector<torch::Tensor> parts;
    for (const auto& piece : joined.pieces) {
      parts.push_back(piece.tensor);
    }
    auto tensor =
        parts.size() == 1 ? parts.front() : torch::cat(parts, joined.dimension);
    if (const auto* before = result_.find(key)) {
      // One tensor of the target stands for several canonical ones.
      check_equal(
          format_text("{}, needed for {},", key, target_.name()),
          *before,
          key_at(scope_, rule.canonical_keys.front()),
          tensor);
      return;
    }
    result_.insert(key, std::move(tensor));
  }

  static void check_equal(
      const std::string& a_key,
      const torch::Tensor& a,
      const std::string& b_key,
      const torch::Tensor& b) {
    TORCH_CHECK(
        a.sizes() == b.sizes() && a.scalar_type() == b.scalar_type() &&
            a.equal(b),
        format_text(
            "{} and {} differ, but one has to be the other", a_key, b_key));
  }

  std::string scope_;
  const WeightLayout& source_;
  const WeightLayout& target_;
  Canonical canonical_;
  std::optional<int64_t> num_heads_;
  std::set<std::string> written_;
  StateDict result_;
};

/// The attention modules of a file that are in layout `source`.
std::vector<Place> places_in(
    const StateDict& file,
    const WeightLayout& source) {
  auto places = source.is_automatic()
      ? find_places(file)
      : find_places(file, std::vector<WeightLayout>{source});
  for (const auto& place : places) {
    TORCH_CHECK(
        place.choice.layout.has_value(),
        ambiguous_text(place.scope, place.choice.ambiguous));
  }
  TORCH_CHECK(
      !places.empty(),
      source.is_automatic()
          ? std::string("no attention was found in the file")
          : format_text(
                "no attention in layout \"{}\" was found in the file: it has "
                "no {}",
                source.name(),
                names_looked_for("", source)));
  return places;
}

/// The first keys at `scope` that `layout` says nothing about.
std::vector<std::string> unknown_keys(
    const StateDict& file,
    const std::vector<std::string>& sorted_keys,
    const std::string& scope,
    const WeightLayout& layout) {
  constexpr size_t kMaxUnknown = 20;
  auto known = keys_read(file, scope, layout);
  for (const auto* others : {&layout.ignored(), &layout.outside_keys()}) {
    const auto keys = keys_at(file, scope, *others);
    known.insert(known.end(), keys.begin(), keys.end());
  }
  std::sort(known.begin(), known.end());
  const auto start = scope.empty() ? scope : scope + ".";
  std::vector<std::string> unknown;
  for (auto key =
           std::lower_bound(sorted_keys.begin(), sorted_keys.end(), start);
       key != sorted_keys.end() && starts_with(*key, start) &&
       unknown.size() < kMaxUnknown;
       ++key) {
    if (!std::binary_search(known.begin(), known.end(), *key)) {
      unknown.push_back(key->substr(start.size()));
    }
  }
  return unknown;
}

void insert(StateDict& state, const std::string& key, torch::Tensor tensor) {
  TORCH_CHECK(
      !state.contains(key),
      format_text("two tensors would have the key \"{}\"", key));
  state.insert(key, std::move(tensor));
}

} // namespace

Converted convert_layout(
    const StateDict& from,
    const WeightLayout& source,
    const WeightLayout& target,
    std::optional<int64_t> num_heads) {
  TORCH_CHECK(
      !target.is_automatic(),
      "expected a layout to convert to, but got \"automatic\"");
  const torch::NoGradGuard no_grad;
  const auto places = places_in(from, source);
  std::map<std::string, size_t> place_of_key;
  std::vector<StateDict> converted;
  std::set<std::string> left_out;
  for (const auto& place : places) {
    const auto& layout = *place.choice.layout;
    for (const auto& key : keys_read(from, place.scope, layout)) {
      place_of_key.emplace(key, converted.size());
    }
    const auto ignored = keys_at(from, place.scope, layout.ignored());
    left_out.insert(ignored.begin(), ignored.end());
    PlaceConverter converter(from, place.scope, layout, target, num_heads);
    converted.push_back(converter.convert());
    const auto masks = converter.left_out();
    left_out.insert(masks.begin(), masks.end());
  }

  Converted result;
  std::set<size_t> inserted;
  for (const auto& item : from) {
    const auto& key = item.key();
    if (left_out.count(key) > 0) {
      result.left_out.push_back(key);
    }
    const auto place = place_of_key.find(key);
    if (place != place_of_key.end() && inserted.insert(place->second).second) {
      // All tensors of an attention module, where its first was.
      for (const auto& tensor : converted[place->second]) {
        insert(result.tensors, tensor.key(), tensor.value());
      }
    } else if (place == place_of_key.end() && left_out.count(key) == 0) {
      insert(result.tensors, key, item.value());
    }
  }
  return result;
}

std::vector<Found> find_layouts(const StateDict& file) {
  const torch::NoGradGuard no_grad;
  auto keys = file.keys();
  std::sort(keys.begin(), keys.end());
  std::vector<Found> result;
  for (const auto& place : find_places(file)) {
    Found found;
    found.scope = place.scope;
    found.ambiguous = names_of(place.choice.ambiguous);
    if (place.choice.layout.has_value()) {
      const auto& layout = *place.choice.layout;
      found.layout = layout.name();
      found.num_heads = heads_of(file, place.scope, layout);
      found.shapes = shapes_of(to_canonical(file, place.scope, layout));
      found.unknown = unknown_keys(file, keys, place.scope, layout);
    }
    result.push_back(std::move(found));
  }
  return result;
}

} // namespace torch_attention
