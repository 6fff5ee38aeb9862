#pragma once

// Files in the built-in layouts, made by hand.

#include <support/close.h>
#include <support/test.h>

#include <algorithm>
#include <map>
#include <string>
#include <vector>

namespace layout_test {

using namespace torch_attention;
using namespace torch_attention::testing;

using StateDict = torch::OrderedDict<std::string, torch::Tensor>;
using Keys = std::vector<std::string>;

inline constexpr int64_t kIn = 6;
inline constexpr int64_t kOut = 8;
inline constexpr int64_t kHeads = 2;
inline constexpr int64_t kContext = 5;

inline StateDict state_dict(const torch::nn::Module& module) {
  StateDict tensors;
  for (const auto& item : module.named_parameters()) {
    tensors.insert(item.key(), item.value());
  }
  for (const auto& item : module.named_buffers()) {
    tensors.insert(item.key(), item.value());
  }
  return tensors;
}

/// Draws the canonical tensors of an attention.
inline StateDict draw(
    int64_t kv_out = kOut,
    bool qkv_bias = true,
    bool out_bias = true,
    int64_t d_in = kIn) {
  StateDict tensors;
  const auto add = [&](const std::string& layer, int64_t out, bool bias) {
    tensors.insert(
        layer + ".weight",
        torch::randn({out, layer == "out_proj" ? kOut : d_in}));
    if (bias) {
      tensors.insert(layer + ".bias", torch::randn({out}));
    }
  };
  add("W_query", kOut, qkv_bias);
  add("W_key", kv_out, qkv_bias);
  add("W_value", kv_out, qkv_bias);
  add("out_proj", kOut, out_bias);
  return tensors;
}

inline StateDict with(
    StateDict tensors,
    const std::string& key,
    const torch::Tensor& tensor) {
  tensors.insert(key, tensor);
  return tensors;
}

inline StateDict without(const StateDict& tensors, const Keys& keys) {
  StateDict rest;
  for (const auto& item : tensors) {
    if (std::find(keys.begin(), keys.end(), item.key()) == keys.end()) {
      rest.insert(item.key(), item.value());
    }
  }
  return rest;
}

inline StateDict below(const std::string& path, const StateDict& tensors) {
  StateDict result;
  for (const auto& item : tensors) {
    result.insert(path + "." + item.key(), item.value());
  }
  return result;
}

inline StateDict merge(StateDict a, const StateDict& b) {
  for (const auto& item : b) {
    a.insert(item.key(), item.value());
  }
  return a;
}

/// Renames layers by `names`: "W_query.weight" -> "q_proj.weight".
inline StateDict renamed(
    const StateDict& canonical,
    const std::map<std::string, std::string>& names) {
  StateDict result;
  for (const auto& item : canonical) {
    const auto dot = item.key().find('.');
    const auto layer = item.key().substr(0, dot);
    result.insert(names.at(layer) + item.key().substr(dot), item.value());
  }
  return result;
}

/// Renames layers and splits them into a list of heads; `out` keeps all heads.
inline StateDict listed(
    const StateDict& canonical,
    const std::map<std::string, std::string>& names,
    const std::string& out) {
  StateDict result;
  for (const auto& item : canonical) {
    const auto dot = item.key().find('.');
    const auto layer = item.key().substr(0, dot);
    const auto leaf = item.key().substr(dot);
    if (layer == "out_proj") {
      result.insert(out + leaf, item.value());
      continue;
    }
    const auto heads = item.value().chunk(kHeads);
    for (size_t head = 0; head < heads.size(); ++head) {
      result.insert(
          "heads." + std::to_string(head) + "." + names.at(layer) + leaf,
          heads[head].clone());
    }
  }
  return result;
}

inline torch::Tensor joined(
    const StateDict& canonical,
    const std::string& leaf) {
  return torch::cat(
      {canonical["W_query" + leaf],
       canonical["W_key" + leaf],
       canonical["W_value" + leaf]});
}

/// Makes a file in a layout, as the layout's Python class stores it.
inline StateDict file_in(
    const std::string& layout,
    const StateDict& canonical) {
  const auto tril = torch::tril(torch::ones({kContext, kContext}));
  const auto causal = tril.view({1, 1, kContext, kContext});
  const std::map<std::string, std::string> qkv = {
      {"W_query", "query"},
      {"W_key", "key"},
      {"W_value", "value"},
      {"out_proj", "proj"}};
  StateDict file;
  if (layout == "book") {
    return with(canonical, "mask", 1 - tril);
  }
  if (layout == "q_linear") {
    return renamed(
        canonical,
        {{"W_query", "q_linear"},
         {"W_key", "k_linear"},
         {"W_value", "v_linear"},
         {"out_proj", "out_proj"}});
  }
  if (layout == "query_key_value") {
    return with(renamed(canonical, qkv), "tril", tril);
  }
  if (layout == "query_key_value_heads") {
    file = listed(canonical, qkv, "proj");
    file.insert("heads.0.tril", tril);
    file.insert("heads.1.tril", tril);
    return file;
  }
  if (layout == "gpt2") {
    file.insert("bias", causal.to(torch::kBool));
    file.insert("masked_bias", torch::tensor(-1e4));
    file.insert("c_attn.weight", joined(canonical, ".weight").t().clone());
    file.insert("c_attn.bias", joined(canonical, ".bias"));
    file.insert("c_proj.weight", canonical["out_proj.weight"].t().clone());
    file.insert("c_proj.bias", canonical["out_proj.bias"]);
    return file;
  }
  if (layout == "nano_gpt") {
    file.insert("bias", causal);
    file.insert("c_attn.weight", joined(canonical, ".weight"));
    file.insert("c_attn.bias", joined(canonical, ".bias"));
    file.insert("c_proj.weight", canonical["out_proj.weight"]);
    file.insert("c_proj.bias", canonical["out_proj.bias"]);
    return file;
  }
  if (layout == "bert") {
    file = renamed(
        canonical,
        {{"W_query", "self.query"},
         {"W_key", "self.key"},
         {"W_value", "self.value"},
         {"out_proj", "output.dense"}});
    file.insert("output.LayerNorm.weight", torch::ones({kOut}));
    file.insert("output.LayerNorm.bias", torch::zeros({kOut}));
    return file;
  }
  if (layout == "llama" || layout == "bart") {
    return renamed(
        canonical,
        {{"W_query", "q_proj"},
         {"W_key", "k_proj"},
         {"W_value", "v_proj"},
         {"out_proj", layout == "llama" ? "o_proj" : "out_proj"}});
  }
  if (layout == "torch_multihead_attention") {
    file.insert("in_proj_weight", joined(canonical, ".weight"));
    file.insert("in_proj_bias", joined(canonical, ".bias"));
    file.insert("out_proj.weight", canonical["out_proj.weight"]);
    file.insert("out_proj.bias", canonical["out_proj.bias"]);
    return file;
  }
  FAIL("no such layout: " << layout);
  return file;
}

/// The layouts that hold a whole multi-head attention and are known by their
/// keys.
inline const Keys kWholeLayouts = {
    "book",
    "q_linear",
    "query_key_value",
    "query_key_value_heads",
    "gpt2",
    "nano_gpt",
    "bert",
    "llama",
    "bart",
    "torch_multihead_attention"};

inline void check_equal(const StateDict& actual, const StateDict& expected) {
  auto actual_keys = actual.keys();
  auto expected_keys = expected.keys();
  std::sort(actual_keys.begin(), actual_keys.end());
  std::sort(expected_keys.begin(), expected_keys.end());
  REQUIRE(actual_keys == expected_keys);
  for (const auto& item : expected) {
    CAPTURE(item.key());
    CHECK_THAT(actual[item.key()].contiguous(), IsEqualTo(item.value()));
  }
}

inline MultiHeadAttentionOptions options(int64_t d_in = kIn) {
  return MultiHeadAttentionOptions(d_in, kOut, kContext, kHeads)
      .qkv_bias(true)
      .kernel(Kernel::kReference);
}

} // namespace layout_test
