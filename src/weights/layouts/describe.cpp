#include <weights/layouts/describe.h>

#include <weights/layouts/find.h>
#include <weights/layouts/rules.h>

#include <ATen/core/grad_mode.h>

#include <algorithm>
#include <string>
#include <utility>

namespace torch_attention::weights::layouts {

namespace {

/// Returns the first keys at `scope` that `layout` neither reads nor ignores.
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

/// Returns the numbers of heads into which queries and keys can be split. If
/// keys have fewer rows than queries, head_dim determines the number of key
/// heads.
std::vector<int64_t> possible_heads(const WeightsInfo::Attention& info) {
  const auto rows = info.d_out();
  const auto key = info.shapes.find("W_key.weight");
  const auto key_rows = key != info.shapes.end() && !key->second.empty()
      ? key->second.front()
      : rows;
  std::vector<int64_t> heads;
  // A file may claim any number of rows if there are no columns.
  constexpr int64_t kMaxHeads = 4096;
  for (int64_t count = 1; count <= std::min(rows, kMaxHeads); ++count) {
    if (rows % count == 0 && key_rows % (rows / count) == 0) {
      heads.push_back(count);
    }
  }
  return heads;
}

} // namespace

std::vector<WeightsInfo::Attention> describe_attention(
    const StateDict& file,
    const Decide& decide) {
  const torch::NoGradGuard no_grad;
  auto keys = file.keys();
  std::sort(keys.begin(), keys.end());
  std::vector<WeightsInfo::Attention> result;
  for (auto& attention : find_attention(file)) {
    WeightsInfo::Attention info;
    info.path = attention.scope;
    if (attention.layouts.size() == 1 && decide) {
      auto decision = decide(info.path, attention.layouts.front());
      attention.layouts.front() = std::move(decision.layout);
      info.remark = std::move(decision.remark);
    }
    info.layouts = names_of(attention.layouts);
    if (attention.layouts.size() == 1) {
      const auto& layout = attention.layouts.front();
      const auto num_heads = heads_of(file, info.path, layout);
      info.shapes = shapes_of(to_canonical(file, info.path, layout));
      info.lists_heads = num_heads.has_value();
      info.possible_num_heads =
          num_heads ? std::vector<int64_t>{*num_heads} : possible_heads(info);
      info.unknown_keys = unknown_keys(file, keys, info.path, layout);
    }
    result.push_back(std::move(info));
  }
  return result;
}

} // namespace torch_attention::weights::layouts
