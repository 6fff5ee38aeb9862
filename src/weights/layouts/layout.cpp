#include <format_text.h>
#include <torch_attention/weights/layout.h>

#include <check.h>

#include <c10/util/Exception.h>

#include <algorithm>
#include <array>
#include <utility>

namespace torch_attention {

namespace {

constexpr const char* kAutomatic = "automatic";

constexpr std::array<const char*, 34> kCanonicalKeys = {
    "W_query.weight",
    "W_query.bias",
    "W_key.weight",
    "W_key.bias",
    "W_value.weight",
    "W_value.bias",
    "W_gate.weight",
    "W_gate.bias",
    "out_proj.weight",
    "out_proj.bias",
    "out_norm.weight",
    "out_norm.bias",
    "q_norm.weight",
    "q_norm.bias",
    "k_norm.weight",
    "k_norm.bias",
    "query_scale",
    "W_pos.weight",
    "pos_bias_u",
    "pos_bias_v",
    "distance_embedding.weight",
    "W_pos_key.weight",
    "W_pos_key.bias",
    "W_pos_query.weight",
    "W_pos_query.bias",
    "relative_embeddings",
    "W_query_global.weight",
    "W_query_global.bias",
    "W_key_global.weight",
    "W_key_global.bias",
    "W_value_global.weight",
    "W_value_global.bias",
    "sinks",
    "mask"};

void check_canonical_key(const std::string& layout, const std::string& key) {
  TORCH_ATTENTION_CHECK(
      std::find(kCanonicalKeys.begin(), kCanonicalKeys.end(), key) !=
          kCanonicalKeys.end(),
      "WeightLayout \"{}\": expected a canonical key, one of \"{}\", but got "
      "\"{}\"",
      layout,
      fmt::join(kCanonicalKeys, "\", \""),
      key);
}

void check_file_key(const std::string& layout, const std::string& key) {
  const auto place = key.find("{}");
  TORCH_ATTENTION_CHECK(
      !key.empty() &&
          (place == std::string::npos ||
           key.find("{}", place + 1) == std::string::npos),
      "WeightLayout \"{}\": expected a key of the file with at most one \"{{}}\""
      ", but got \"{}\"",
      layout,
      key);
}

std::vector<std::string> split_at_commas(const std::string& text) {
  std::vector<std::string> parts(1);
  for (const char letter : text) {
    if (letter == ',') {
      parts.emplace_back();
    } else {
      parts.back() += letter;
    }
  }
  return parts;
}

/// Parses a number of heads; returns 0 if the text is not a number.
int64_t heads_of(const std::string& text) {
  constexpr size_t kMostDigits = 9;
  const bool is_number = !text.empty() && text.size() <= kMostDigits &&
      text.find_first_not_of("0123456789") == std::string::npos;
  return is_number ? std::stoll(text) : 0;
}

/// Parses "wq,wk,wv,wo", "qkv,proj" or "qkv,proj,12,4".
WeightLayout layout_of_names(const std::string& text) {
  const auto names = split_at_commas(text);
  const auto count = names.size();
  const auto heads = count > 2 ? heads_of(names[2]) : 0;
  const auto kv_heads = count > 3 ? heads_of(names[3]) : heads;
  // The output projection may be absent.
  const bool has_inputs = !names[0].empty() && count >= 2;
  if (has_inputs && count == 2) {
    return WeightLayout::joined(names[0], names[1]);
  }
  if (has_inputs && count <= 4 && heads > 0 && kv_heads > 0) {
    return WeightLayout::joined_by_heads(names[0], names[1], heads, kv_heads);
  }
  TORCH_ATTENTION_CHECK(
      has_inputs && count == 4 && !names[1].empty() && !names[2].empty(),
      "WeightLayout: expected names as \"wq,wk,wv,wo\" (query, key, value, "
      "output), \"qkv,proj\" (rows of queries, then keys, then values; "
      "output) or \"linear_qkv,linear_proj,12,4\" (rows by heads; output; "
      "numbers of heads and of key heads), but got \"{}\"",
      text);
  return WeightLayout::linear_layers(names[0], names[1], names[2], names[3]);
}

} // namespace

WeightLayout::WeightLayout(std::string name) : name_(std::move(name)) {
  TORCH_CHECK(!name_.empty(), "WeightLayout: expected a name, but got \"\"");
}

WeightLayout& WeightLayout::add(Rule rule) {
  check_file_key(name_, rule.file_key);
  TORCH_ATTENTION_CHECK(
      !rule.canonical_keys.empty(),
      "WeightLayout \"{}\": expected canonical keys for \"{}\", but got none",
      name_,
      rule.file_key);
  for (const auto& key : rule.canonical_keys) {
    check_canonical_key(name_, key);
  }
  rules_.push_back(std::move(rule));
  return *this;
}

WeightLayout& WeightLayout::rename(
    std::string file_key,
    std::string canonical_key) {
  return split(std::move(file_key), {std::move(canonical_key)});
}

WeightLayout& WeightLayout::transpose(
    std::string file_key,
    std::string canonical_key) {
  return split(
      std::move(file_key), {std::move(canonical_key)}, /*transposed=*/true);
}

WeightLayout& WeightLayout::split(
    std::string file_key,
    std::vector<std::string> canonical_keys,
    bool transposed) {
  return add({std::move(file_key), std::move(canonical_keys), transposed});
}

WeightLayout& WeightLayout::interleave(
    std::string file_key,
    std::vector<std::string> canonical_keys,
    int64_t groups,
    std::vector<int64_t> shares) {
  TORCH_ATTENTION_CHECK(
      groups > 0,
      "WeightLayout \"{}\": expected groups > 0 for \"{}\", but got {}",
      name_,
      file_key,
      groups);
  if (shares.empty()) {
    shares.resize(canonical_keys.size(), 1);
  }
  TORCH_ATTENTION_CHECK(
      shares.size() == canonical_keys.size() &&
          std::all_of(
              shares.begin(),
              shares.end(),
              [](int64_t share) { return share > 0; }),
      "WeightLayout \"{}\": expected {} shares > 0 for \"{}\", one for "
      "each canonical key, but got {}",
      name_,
      canonical_keys.size(),
      file_key,
      fmt::join(shares, ", "));
  Rule rule{std::move(file_key), std::move(canonical_keys)};
  rule.groups = groups;
  rule.shares = std::move(shares);
  return add(std::move(rule));
}

WeightLayout& WeightLayout::stack(
    std::string file_key,
    std::string canonical_key) {
  Rule rule{std::move(file_key), {std::move(canonical_key)}};
  rule.stacked = true;
  return add(std::move(rule));
}

WeightLayout& WeightLayout::tie(
    std::string file_key,
    std::string canonical_key) {
  return add(
      {std::move(file_key),
       {std::move(canonical_key)},
       /*transposed=*/false,
       /*tied=*/true});
}

WeightLayout& WeightLayout::ignore(std::string file_key) {
  check_file_key(name_, file_key);
  ignored_.push_back(std::move(file_key));
  return *this;
}

WeightLayout& WeightLayout::outside(std::string file_key) {
  check_file_key(name_, file_key);
  outside_keys_.push_back(std::move(file_key));
  return *this;
}

WeightLayout& WeightLayout::zeros(std::string canonical_key) {
  check_canonical_key(name_, canonical_key);
  zero_keys_.push_back(std::move(canonical_key));
  return *this;
}

WeightLayout WeightLayout::automatic() {
  return WeightLayout(kAutomatic);
}

WeightLayout WeightLayout::named(const std::string& name) {
  if (name == kAutomatic) {
    return automatic();
  }
  if (name.find(',') != std::string::npos) {
    return layout_of_names(name);
  }
  std::vector<std::string> names = {kAutomatic};
  for (auto& layout : built_in()) {
    if (layout.name() == name) {
      return layout;
    }
    names.push_back(layout.name());
  }
  C10_THROW_ERROR(
      Error,
      format_text(
          "WeightLayout: expected the name of a layout, one of \"{}\", or the "
          "names of layers as \"wq,wk,wv,wo\" or \"qkv,proj\", but got \"{}\"",
          fmt::join(names, "\", \""),
          name));
}

const std::string& WeightLayout::name() const {
  return name_;
}

bool WeightLayout::is_automatic() const {
  return name_ == kAutomatic && rules_.empty();
}

const std::vector<WeightLayout::Rule>& WeightLayout::rules() const {
  return rules_;
}

const std::vector<std::string>& WeightLayout::ignored() const {
  return ignored_;
}

const std::vector<std::string>& WeightLayout::outside_keys() const {
  return outside_keys_;
}

const std::vector<std::string>& WeightLayout::zero_keys() const {
  return zero_keys_;
}

} // namespace torch_attention
