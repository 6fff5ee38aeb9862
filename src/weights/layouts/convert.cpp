#include <weights/layouts/convert.h>

#include <check.h>
#include <error_message.h>
#include <format_text.h>
#include <weights/layouts/find.h>
#include <weights/layouts/rules.h>

#include <c10/util/Exception.h>

#include <algorithm>
#include <map>
#include <set>
#include <string_view>
#include <utility>

namespace torch_attention::weights::layouts {

namespace {

std::string shapes_text(const Shapes& shapes) {
  std::vector<std::string> texts;
  for (const auto& [key, shape] : shapes) {
    texts.push_back(format_text("{} {}", key, shape_text(shape)));
  }
  return list_text(texts, ", ");
}

/// Returns whether a layout without a rule for the key leaves it unchanged.
bool keeps_its_name(std::string_view key) {
  return starts_with(key, "q_norm.") || starts_with(key, "k_norm.") ||
      starts_with(key, "W_gate.") || starts_with(key, "out_norm.") ||
      key == "query_scale" || key == "sinks";
}

/// Rewrites one attention module of a file.
class AttentionConverter {
 public:
  AttentionConverter(
      const StateDict& from,
      std::string scope,
      const WeightLayout& source,
      const WeightLayout& target,
      std::optional<int64_t> num_heads,
      const files::StoredTensors& stored)
      : stored_(stored),
        scope_(std::move(scope)),
        source_(source),
        target_(target),
        canonical_(to_canonical(from, scope_, source)),
        num_heads_(num_heads) {
    const auto listed = heads_of(from, scope_, source);
    TORCH_ATTENTION_CHECK(
        !listed || !num_heads || *listed == *num_heads,
        "expected num_heads = {}, the number of heads in {}, but got {}",
        listed.value_or(0),
        scope_text(scope_),
        num_heads.value_or(0));
    if (listed.has_value()) {
      num_heads_ = listed;
    }
  }

  /// Returns the tensors in the target's layout.
  StateDict convert() {
    check_source();
    add_zeros();
    for (const auto& rule : target_.rules()) {
      if (can_write(rule)) {
        write(rule);
      }
    }
    for (const auto& item : canonical_) {
      if (keeps_its_name(item.first) && written_.count(item.first) == 0) {
        keep(item.first, item.second);
        continue;
      }
      TORCH_ATTENTION_CHECK(
          item.first == kMaskKey || written_.count(item.first) > 0,
          "layout \"{}\" has no place for {} of {}",
          target_.name(),
          item.first,
          scope_text(scope_));
    }
    return std::move(result_);
  }

  /// Returns the keys of the source's mask, if the target has no masks.
  std::vector<std::string> left_out() const {
    std::vector<std::string> keys;
    const auto mask = canonical_.find(kMaskKey);
    if (mask != canonical_.end() && written_.count(kMaskKey) == 0) {
      keys = mask->second.keys();
      for (const auto& copy : mask->second.copies) {
        keys.push_back(copy.key);
      }
    }
    return keys;
  }

 private:
  void check_source() const {
    std::set<std::string> problems;
    for (const auto& [key, source] : canonical_) {
      if (!source.is_found()) {
        problems.insert(source.problem);
      }
      for (const auto& copy : source.copies) {
        const auto& first = source.parts.front();
        check_equal(first.key, first.tensor, copy.key, copy.tensor);
      }
    }
    if (!problems.empty()) {
      throw_printable(list_text({problems.begin(), problems.end()}, "\n\t"));
    }
    const auto shapes = shapes_of(canonical_);
    TORCH_ATTENTION_CHECK(
        are_consistent(shapes),
        "the shapes of {} are not those of one attention in layout \"{}\": "
        "{}",
        scope_text(scope_),
        source_.name(),
        shapes_text(shapes));
  }

  /// Adds biases that the source's class lacks and the target's class has.
  void add_zeros() {
    const bool has_bias = canonical_.count("W_query.bias") > 0;
    const auto shapes = shapes_of(canonical_);
    for (const auto& key : source_.zero_keys()) {
      const bool is_needed = key == "out_proj.bias" || has_bias;
      const auto weight = key.substr(0, key.find('.')) + ".weight";
      const auto shape = shapes.find(weight);
      if (is_needed && !contains(target_.zero_keys(), key) &&
          shape != shapes.end()) {
        const auto& tensor = canonical_.at(weight).parts.front().tensor;
        canonical_.emplace(
            key, zeros_of({shape->second.front()}, tensor.options()));
      }
    }
  }

  /// Returns whether the rule's tensors exist, are not written yet, and have
  /// shapes that can be concatenated.
  bool can_write(const WeightLayout::Rule& rule) const {
    std::vector<Part> parts;
    for (const auto& key : rule.canonical_keys) {
      const auto source = canonical_.find(key);
      if (source == canonical_.end() || written_.count(key) > 0) {
        return false;
      }
      const auto& its_parts = source->second.parts;
      parts.insert(parts.end(), its_parts.begin(), its_parts.end());
    }
    return parts.size() == 1 || can_join(parts);
  }

  void write(const WeightLayout::Rule& rule) {
    const auto keys = keys_for_heads(scope_, rule.file_key, check_heads(rule));
    const auto sources = from_canonical(
        canonical_,
        rule,
        keys,
        std::vector<std::optional<int64_t>>(keys.size()));
    for (size_t i = 0; i < keys.size(); ++i) {
      TORCH_CHECK(sources[i].is_found(), sources[i].problem);
      add(keys[i], sources[i], rule);
    }
    written_.insert(rule.canonical_keys.begin(), rule.canonical_keys.end());
  }

  /// Adds a tensor without a rule in the target, such as a norm, under its key.
  void keep(const std::string& canonical_key, const Source& source) {
    add(key_at(scope_, canonical_key),
        source,
        {canonical_key, {canonical_key}});
  }

  /// Returns the number of heads if the rule needs it, and otherwise 1.
  int64_t check_heads(const WeightLayout::Rule& rule) const {
    if (!lists_heads(rule.file_key)) {
      return 1;
    }
    if (rule.stacked) {
      return shapes_of(canonical_).at(rule.canonical_keys.front()).front();
    }
    TORCH_ATTENTION_CHECK(
        num_heads_.has_value() && *num_heads_ > 0,
        "layout \"{}\" lists the heads: expected their number, num_heads",
        target_.name());
    const auto shapes = shapes_of(canonical_);
    TORCH_ATTENTION_CHECK(
        shapes.at("W_query.weight").front() ==
            shapes.at("W_key.weight").front(),
        "layout \"{}\" lists the heads, each with its own keys and values, "
        "but those of {} are shared: {}",
        target_.name(),
        scope_text(scope_),
        shapes_text(shapes));
    const auto rows = shapes.at("W_query.weight").front();
    TORCH_ATTENTION_CHECK(
        *num_heads_ <= rows,
        "expected num_heads <= {}, the rows of W_query.weight of {}, but "
        "got {}",
        rows,
        scope_text(scope_),
        *num_heads_);
    return *num_heads_;
  }

  void add(
      const std::string& key,
      const Source& source,
      const WeightLayout::Rule& rule) {
    std::vector<torch::Tensor> parts;
    for (const auto& part : source.parts) {
      parts.push_back(part.tensor);
    }
    auto tensor =
        parts.size() == 1 ? parts.front() : joined(parts, source.dimension);
    if (const auto* before = result_.find(key)) {
      // The target has one tensor for several canonical ones.
      check_equal(
          format_text("{}, needed for {},", key, target_.name()),
          *before,
          key_at(scope_, rule.canonical_keys.front()),
          tensor);
      return;
    }
    result_.insert(key, std::move(tensor));
  }

  torch::Tensor joined(
      const std::vector<torch::Tensor>& parts,
      int64_t dimension) const {
    for (const auto& part : parts) {
      stored_.fill(part);
    }
    auto result = torch::cat(parts, dimension);
    for (const auto& part : parts) {
      stored_.release(part);
    }
    return result;
  }

  void check_equal(
      const std::string& a_key,
      const torch::Tensor& a,
      const std::string& b_key,
      const torch::Tensor& b) const {
    stored_.fill(a);
    stored_.fill(b);
    TORCH_ATTENTION_CHECK(
        a.sizes() == b.sizes() && a.scalar_type() == b.scalar_type() &&
            a.equal(b),
        "{} and {} differ, but one has to be the other",
        a_key,
        b_key);
    stored_.release(a);
    stored_.release(b);
  }

  const files::StoredTensors& stored_;
  std::string scope_;
  const WeightLayout& source_;
  const WeightLayout& target_;
  Sources canonical_;
  std::optional<int64_t> num_heads_;
  std::set<std::string> written_;
  StateDict result_;
};

/// Returns the attention modules of a file that have the layout `source`.
std::vector<Attention> attention_in(
    const StateDict& file,
    const WeightLayout& source) {
  auto found = source.is_automatic()
      ? find_attention(file)
      : find_attention(file, std::vector<WeightLayout>{source});
  for (const auto& attention : found) {
    TORCH_CHECK(
        attention.layouts.size() == 1,
        ambiguous_text(attention.scope, attention.layouts));
  }
  TORCH_CHECK(
      !found.empty(),
      source.is_automatic()
          ? std::string("no attention was found in the file")
          : format_text(
                "no attention in layout \"{}\" was found in the file: it has "
                "no {}",
                source.name(),
                names_looked_for("", source)));
  return found;
}

void insert(StateDict& state, const std::string& key, torch::Tensor tensor) {
  TORCH_ATTENTION_CHECK(
      !state.contains(key), "two tensors would have the key \"{}\"", key);
  state.insert(key, std::move(tensor));
}

} // namespace

ConvertedWeights convert(
    const StateDict& from,
    const WeightLayout& source,
    const WeightLayout& target,
    std::optional<int64_t> num_heads,
    const Decide& decide,
    const files::StoredTensors& stored) {
  TORCH_CHECK(
      !target.is_automatic(),
      "expected a layout to convert to, but got \"automatic\"");
  const torch::NoGradGuard no_grad;
  std::map<std::string, size_t> module_of_key;
  std::vector<StateDict> converted;
  std::set<std::string> left_out;
  std::set<std::string> remarks;
  for (const auto& attention : attention_in(from, source)) {
    const auto& scope = attention.scope;
    auto layout = attention.layouts.front();
    if (source.is_automatic() && decide) {
      auto decision = decide(scope, layout);
      layout = std::move(decision.layout);
      remarks.insert(std::move(decision.remark));
    }
    for (const auto& key : keys_read(from, scope, layout)) {
      module_of_key.emplace(key, converted.size());
    }
    const auto ignored = keys_at(from, scope, layout.ignored());
    left_out.insert(ignored.begin(), ignored.end());
    AttentionConverter converter(
        from, scope, layout, target, num_heads, stored);
    converted.push_back(converter.convert());
    const auto masks = converter.left_out();
    left_out.insert(masks.begin(), masks.end());
  }

  remarks.erase("");
  ConvertedWeights result;
  result.remarks.assign(remarks.begin(), remarks.end());
  std::set<size_t> inserted;
  for (const auto& item : from) {
    const auto& key = item.key();
    if (left_out.count(key) > 0) {
      result.left_out.push_back(key);
    }
    const auto module = module_of_key.find(key);
    if (module != module_of_key.end() &&
        inserted.insert(module->second).second) {
      // Inserts all tensors of a module where its first one was.
      for (const auto& tensor : converted[module->second]) {
        insert(result.tensors, tensor.key(), tensor.value());
      }
    } else if (module == module_of_key.end() && left_out.count(key) == 0) {
      insert(result.tensors, key, item.value());
    }
  }
  return result;
}

} // namespace torch_attention::weights::layouts
