#include <torch_attention/nn/utils/swap_transformer.h>

#include <torch_attention/nn/functional/attention.h>
#include <torch_attention/nn/modules/swapped_transformer.h>
#include <torch_attention/nn/utils/swap.h>

#include <algorithm>
#include <array>
#include <memory>
#include <typeindex>
#include <typeinfo>

namespace torch_attention {

namespace {

using torch::nn::MultiheadAttentionImpl;
using torch::nn::TransformerDecoderImpl;
using torch::nn::TransformerEncoderImpl;
using torch::nn::TransformerImpl;

/// Query, key and value (T, B, C) or (S, B, C) after their projections.
std::array<torch::Tensor, 3> projected(
    const MultiheadAttentionImpl& m,
    const torch::Tensor& query,
    const torch::Tensor& key,
    const torch::Tensor& value) {
  const auto C = m.options.embed_dim();
  const bool one = m._qkv_same_embed_dim;
  if (one && query.is_same(key) && query.is_same(value)) {
    const auto all = torch::linear(query, m.in_proj_weight, m.in_proj_bias);
    return {all.slice(-1, 0, C), all.slice(-1, C, 2 * C), all.slice(-1, 2 * C)};
  }
  const auto project =
      [&](int64_t i, const torch::Tensor& x, const torch::Tensor& separate) {
        const auto rows = [&](const torch::Tensor& whole) {
          return whole.defined() ? whole.slice(0, i * C, (i + 1) * C) : whole;
        };
        return torch::linear(
            x, one ? rows(m.in_proj_weight) : separate, rows(m.in_proj_bias));
      };
  return {
      project(0, query, m.q_proj_weight),
      project(1, key, m.k_proj_weight),
      project(2, value, m.v_proj_weight)};
}

/// (T, B, C) -> (B, H, T, D)
torch::Tensor to_heads(const torch::Tensor& x, int64_t num_heads) {
  return x.view({x.size(0), x.size(1), num_heads, x.size(2) / num_heads})
      .permute({1, 2, 0, 3});
}

bool is_swappable(
    const MultiheadAttentionImpl& m,
    const torch::Tensor& query,
    const torch::Tensor& key,
    const torch::Tensor& value,
    const torch::Tensor& key_padding_mask,
    const torch::Tensor& attn_mask) {
  const auto C = m.options.embed_dim();
  if (m.bias_k.defined() || m.bias_v.defined() || m.options.add_zero_attn() ||
      query.dim() != 3 || key.dim() != 3 || value.dim() != 3 ||
      query.size(2) != C || key.size(1) != query.size(1) ||
      key.size(0) != value.size(0) || key.size(1) != value.size(1)) {
    return false;
  }
  const auto T = query.size(0);
  const auto S = key.size(0);
  const bool padding_fits = !key_padding_mask.defined() ||
      (key_padding_mask.scalar_type() == torch::kBool &&
       key_padding_mask.sizes() == torch::IntArrayRef({key.size(1), S}));
  return padding_fits &&
      (!attn_mask.defined() ||
       (attn_mask.is_floating_point() &&
        attn_mask.sizes() == torch::IntArrayRef({T, S})));
}

/// Returns whether there was a `Theirs` in `place`, a child `name` of a
/// transformer, and puts `Ours` there.
template <typename Ours, typename Theirs>
bool swap_child(
    TransformerImpl& transformer,
    const std::string& name,
    torch::nn::AnyModule& place) {
  if (place.is_empty() ||
      std::type_index(place.type_info()) != std::type_index(typeid(Theirs))) {
    return false;
  }
  const auto ours = std::make_shared<Ours>(place.get<Theirs>());
  place = torch::nn::AnyModule(ours);
  transformer.replace_module(name, ours);
  return true;
}

std::string named(const std::string& path) {
  return path.empty() ? "(the model itself)" : path;
}

std::string joined(const std::string& path, const std::string& name) {
  return path.empty() ? name : path + "." + name;
}

/// Puts `ours` at `path`, unless a member of its parent holds what is there.
template <typename Ours>
void swap_at(
    torch::nn::Module& model,
    const std::string& path,
    const std::shared_ptr<Ours>& ours,
    const std::string& type,
    ModuleSwapReport& report) {
  if (path.empty()) {
    report.left.push_back(
        named(path) + ": make a torch_attention::" + type + " of it");
    return;
  }
  try {
    replace_module(model, path, ours);
    report.swapped.push_back(path);
  } catch (const c10::Error&) {
    report.left.push_back(
        path +
        ": held by a C++ member; declare that as torch_attention::" + type);
  }
}

bool is_within(const std::string& path, const std::string& parent) {
  return parent.empty() || path == parent ||
      path.compare(0, parent.size() + 1, parent + ".") == 0;
}

/// The paths of the modules of exactly this class.
template <typename Impl>
std::vector<std::string> paths_of(torch::nn::Module& model) {
  std::vector<std::string> paths;
  model.apply([&](const std::string& path, torch::nn::Module& module) {
    if (typeid(module) == typeid(Impl)) {
      paths.push_back(path);
    }
  });
  return paths;
}

torch::nn::Module& module_at(
    torch::nn::Module& model,
    const std::string& path) {
  auto* module = &model;
  size_t begin = 0;
  while (begin < path.size()) {
    const auto end = std::min(path.find('.', begin), path.size());
    const auto name = path.substr(begin, end - begin);
    module = module->named_children()[name].get();
    begin = end + 1;
  }
  return *module;
}

} // namespace

torch::Tensor attend(
    const torch::nn::MultiheadAttention& module,
    const torch::Tensor& query,
    const torch::Tensor& key,
    const torch::Tensor& value,
    const torch::Tensor& key_padding_mask,
    const torch::Tensor& attn_mask) {
  auto& m = *module.ptr();
  if (!is_swappable(m, query, key, value, key_padding_mask, attn_mask)) {
    return std::get<0>(m.forward(
        query,
        key,
        value,
        key_padding_mask,
        /*need_weights=*/false,
        attn_mask));
  }
  functional::ScaledDotProductAttentionFuncOptions options;
  options.dropout(m.options.dropout()).training(m.is_training());
  if (key_padding_mask.defined()) {
    options.mask(key_padding_mask.unsqueeze(1).unsqueeze(1));
  }
  if (attn_mask.defined()) {
    options.bias(attn_mask);
  }
  const auto H = m.options.num_heads();
  const auto heads = projected(m, query, key, value);
  const auto context = functional::scaled_dot_product_attention(
      to_heads(heads[0], H),
      to_heads(heads[1], H),
      to_heads(heads[2], H),
      options);
  // (B, H, T, D) -> (T, B, C)
  return torch::linear(
      context.permute({2, 0, 1, 3}).reshape(query.sizes()),
      m.out_proj->weight,
      m.out_proj->bias);
}

ModuleSwapReport swap_attention(torch::nn::Module& model) {
  ModuleSwapReport report;
  for (const auto& path : paths_of<TransformerImpl>(model)) {
    auto& transformer = dynamic_cast<TransformerImpl&>(module_at(model, path));
    if (swap_child<SwappedTransformerEncoderImpl, TransformerEncoderImpl>(
            transformer, "encoder", transformer.encoder)) {
      report.swapped.push_back(joined(path, "encoder"));
    }
    if (swap_child<SwappedTransformerDecoderImpl, TransformerDecoderImpl>(
            transformer, "decoder", transformer.decoder)) {
      report.swapped.push_back(joined(path, "decoder"));
    }
  }
  auto known = report.swapped;
  for (const auto& path : paths_of<TransformerEncoderImpl>(model)) {
    swap_at(
        model,
        path,
        std::make_shared<SwappedTransformerEncoderImpl>(
            dynamic_cast<TransformerEncoderImpl&>(module_at(model, path))),
        "SwappedTransformerEncoder",
        report);
    known.push_back(path);
  }
  for (const auto& path : paths_of<TransformerDecoderImpl>(model)) {
    swap_at(
        model,
        path,
        std::make_shared<SwappedTransformerDecoderImpl>(
            dynamic_cast<TransformerDecoderImpl&>(module_at(model, path))),
        "SwappedTransformerDecoder",
        report);
    known.push_back(path);
  }
  for (const auto& path : paths_of<MultiheadAttentionImpl>(model)) {
    const bool is_known =
        std::any_of(known.begin(), known.end(), [&](const auto& parent) {
          return is_within(path, parent);
        });
    if (!is_known) {
      report.left.push_back(
          named(path) + ": call it by torch_attention::attend");
    }
  }
  return report;
}

} // namespace torch_attention
