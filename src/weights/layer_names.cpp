#include <weights/layer_names.h>

#include <format_text.h>

#include <algorithm>
#include <array>
#include <string_view>

namespace torch_attention::weights {

namespace {

/// The layer names of a class. Without a key and a value, one layer holds all
/// three projections.
struct LayerNames {
  std::string_view query;
  std::string_view key;
  std::string_view value;
  std::string_view out;
  /// Further advice.
  std::string_view remark = {};
};

constexpr std::string_view kInterleaved =
    ". The rotary embedding of Meta's Llama and Mistral pairs neighbours: the "
    "module needs RotaryOptions().pairing(RotaryPairing::kInterleaved)";

constexpr std::array kKnown{
    LayerNames{"wq", "wk", "wv", "wo", kInterleaved},
    LayerNames{"q_lin", "k_lin", "v_lin", "out_lin"},
    LayerNames{"linears.0", "linears.1", "linears.2", "linears.3"},
    LayerNames{"linear_q", "linear_k", "linear_v", "linear_out"},
    LayerNames{"w_qs", "w_ks", "w_vs", "fc"},
    LayerNames{"fc_q", "fc_k", "fc_v", "fc_o"},
    LayerNames{"W_q", "W_k", "W_v", "W_o"},
    LayerNames{"W_Q", "W_K", "W_V", "W_O"},
    LayerNames{"q_proj", "k_proj", "v_proj", "proj"},
    LayerNames{"qkv_proj", "", "", "o_proj"},
    LayerNames{"qkv_proj", "", "", "out_proj"},
    LayerNames{"qkv_proj", "", "", "proj"},
    LayerNames{"wqkv", "", "", "wo"},
    LayerNames{"linear_qkv", "", "", "linear_proj"},
    LayerNames{"query_key_value", "", "", "dense"},
};

bool has_layer(
    const StateDict& tensors,
    const std::string& scope,
    std::string_view layer) {
  const auto* weight = tensors.find(format_text("{}{}.weight", scope, layer));
  return weight != nullptr && weight->dim() == 2;
}

/// Returns the path of an attention module with these layers, with a dot at its
/// end; none if there is no such module.
std::optional<std::string> find_scope(
    const StateDict& tensors,
    const LayerNames& names) {
  const auto end = format_text("{}.weight", names.query);
  for (const auto& item : tensors) {
    const auto& key = item.key();
    if (!ends_with(key, end)) {
      continue;
    }
    const auto scope = key.substr(0, key.size() - end.size());
    const bool is_layer = scope.empty() || scope.back() == '.';
    const auto layers = {names.query, names.key, names.value, names.out};
    if (is_layer &&
        std::all_of(layers.begin(), layers.end(), [&](std::string_view layer) {
          return layer.empty() || has_layer(tensors, scope, layer);
        })) {
      return scope;
    }
  }
  return std::nullopt;
}

/// Returns C++ code with the layouts that the names may stand for.
std::string calls_for(const LayerNames& names) {
  if (!names.key.empty()) {
    return format_text(
        "LoadOptions().layout(WeightLayout::linear_layers(\"{}\", \"{}\", "
        "\"{}\", \"{}\"))",
        names.query,
        names.key,
        names.value,
        names.out);
  }
  return format_text(
      "LoadOptions().layout(WeightLayout::joined(\"{0}\", \"{1}\")) if its rows "
      "are those of queries, then keys, then values, as Phi-3 has them, or "
      "WeightLayout::joined_by_heads(\"{0}\", \"{1}\", num_heads, num_kv_heads) "
      "if they are those of each head, as Megatron and GPT-NeoX have them",
      names.query,
      names.out);
}

} // namespace

std::optional<std::string> layer_names_hint(
    const StateDict& tensors,
    const std::string& start) {
  for (const auto& names : kKnown) {
    const auto scope = find_scope(tensors, names);
    if (!scope) {
      continue;
    }
    auto path = start + *scope;
    if (!path.empty()) {
      path.pop_back();
    }
    return format_text(
        "The file has an attention{} of the layers {}: use {}{}.",
        path.empty() ? "" : format_text(" at prefix(\"{}\")", path),
        names.key.empty()
            ? format_text("\"{}\" and \"{}\"", names.query, names.out)
            : format_text(
                  "\"{}\", \"{}\", \"{}\" and \"{}\"",
                  names.query,
                  names.key,
                  names.value,
                  names.out),
        calls_for(names),
        names.remark);
  }
  return std::nullopt;
}

} // namespace torch_attention::weights
