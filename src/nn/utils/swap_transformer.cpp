#include <torch_attention/nn/utils/swap_transformer.h>

#include <check.h>
#include <torch_attention/nn/functional/attention.h>
#include <torch_attention/nn/modules/swapped_transformer.h>
#include <torch_attention/nn/utils/swap.h>

#include <kernels/linear.h>
#include <nn/utils/multihead_masks.h>
#include <nn/utils/planned_replacement.h>

#include <algorithm>
#include <array>
#include <memory>
#include <typeindex>
#include <typeinfo>
#include <vector>

namespace torch_attention {

namespace {

using torch::nn::MultiheadAttentionImpl;
using torch::nn::TransformerDecoderImpl;
using torch::nn::TransformerEncoderImpl;
using torch::nn::TransformerImpl;

/// Computes `torch::linear` and checks devices.
torch::Tensor linear(
    const torch::Tensor& x,
    const torch::Tensor& weight,
    const torch::Tensor& bias) {
  return kernels::linear(x, weight, bias, Kernel::kReference);
}

/// Returns projected query, key and value, (T, B, C) or (S, B, C).
std::array<torch::Tensor, 3> projected(
    const MultiheadAttentionImpl& m,
    const torch::Tensor& query,
    const torch::Tensor& key,
    const torch::Tensor& value) {
  const auto C = m.options.embed_dim();
  const bool one = m._qkv_same_embed_dim;
  if (one && query.is_same(key) && query.is_same(value)) {
    const auto all = linear(query, m.in_proj_weight, m.in_proj_bias);
    return {all.slice(-1, 0, C), all.slice(-1, C, 2 * C), all.slice(-1, 2 * C)};
  }
  const auto project =
      [&](int64_t i, const torch::Tensor& x, const torch::Tensor& separate) {
        const auto rows = [&](const torch::Tensor& whole) {
          return whole.defined() ? whole.slice(0, i * C, (i + 1) * C) : whole;
        };
        return linear(
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

void check_shapes(
    const MultiheadAttentionImpl& m,
    const torch::Tensor& query,
    const torch::Tensor& key,
    const torch::Tensor& value) {
  const bool fits = query.dim() == 3 && key.dim() == 3 && value.dim() == 3 &&
      query.size(2) == m.options.embed_dim() && key.size(1) == query.size(1) &&
      key.size(0) == value.size(0) && key.size(1) == value.size(1);
  TORCH_ATTENTION_CHECK(
      fits,
      "attend: expected query (T, B, embed_dim = {}), key (S, B, kdim) "
      "and value (S, B, vdim), but got {}, {} and {}",
      m.options.embed_dim(),
      query.sizes(),
      key.sizes(),
      value.sizes());
}

/// Adds the keys and values (1, B, C) of `add_bias_kv` and `add_zero_attn`.
void add_keys(
    const MultiheadAttentionImpl& m,
    torch::Tensor& key,
    torch::Tensor& value,
    detail::MultiheadMasks& masks) {
  const auto add = [&](const torch::Tensor& more_key,
                       const torch::Tensor& more_value) {
    const std::vector<int64_t> sizes = {1, key.size(1), key.size(2)};
    key = torch::cat({key, more_key.expand(sizes)});
    value = torch::cat({value, more_value.expand(sizes)});
    detail::see_more_keys(masks, 1);
  };
  if (m.bias_k.defined()) {
    add(m.bias_k, m.bias_v);
  }
  if (m.options.add_zero_attn()) {
    const auto zero = torch::zeros({1, 1, 1}, key.options());
    add(zero, zero);
  }
}

std::string named(const std::string& path) {
  return path.empty() ? "(the model itself)" : path;
}

std::string joined(const std::string& path, const std::string& name) {
  return path.empty() ? name : path + "." + name;
}

bool is_within(const std::string& path, const std::string& parent) {
  return parent.empty() || path == parent ||
      path.compare(0, parent.size() + 1, parent + ".") == 0;
}

/// Returns the paths of all modules of exactly this class.
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

/// The replacement of a child of a transformer; `place` is its member.
struct PlannedChild {
  TransformerImpl* transformer;
  std::string name;
  torch::nn::AnyModule* place;
  detail::Replacement replacement;
};

/// The planned replacements in a model, and their report. Nothing changes
/// before all are planned, and `run` does not allocate: either all or none are
/// made.
class Plan {
 public:
  /// Plans to replace a child of a transformer if it is a `Theirs`.
  template <typename Ours, typename Theirs>
  void add_child(
      TransformerImpl& transformer,
      const std::string& path,
      const std::string& name,
      torch::nn::AnyModule& place) {
    if (place.is_empty() ||
        std::type_index(place.type_info()) != std::type_index(typeid(Theirs))) {
      return;
    }
    report_.swapped.push_back(joined(path, name));
    // A transformer may be a child of several modules.
    if (is_planned(transformer, name)) {
      return;
    }
    const auto ours = std::make_shared<Ours>(place.get<Theirs>());
    children_.push_back(
        {&transformer, name, &place, {ours, torch::nn::AnyModule(ours)}});
  }

  /// Plans to replace all other modules of class `Theirs`, except those that a
  /// member of their parent holds. `type` is the holder of `Ours`.
  template <typename Ours, typename Theirs>
  void add_all(torch::nn::Module& model, const std::string& type) {
    for (const auto& path : paths_of<Theirs>(model)) {
      const auto& swapped = report_.swapped;
      if (std::find(swapped.begin(), swapped.end(), path) != swapped.end()) {
        continue;
      }
      known_.push_back(path);
      if (path.empty()) {
        report_.left.push_back(
            named(path) + ": make a torch_attention::" + type + " of it");
        continue;
      }
      const auto ours =
          std::make_shared<Ours>(dynamic_cast<Theirs&>(module_at(model, path)));
      try {
        modules_.emplace_back(
            model, path, detail::Replacement{ours, torch::nn::AnyModule(ours)});
        report_.swapped.push_back(path);
      } catch (const c10::Error&) {
        report_.left.push_back(
            path +
            ": held by a C++ member; declare that as torch_attention::" + type);
      }
    }
  }

  /// Reports all other modules of class MultiheadAttention.
  void leave_others(torch::nn::Module& model) {
    for (const auto& path : paths_of<MultiheadAttentionImpl>(model)) {
      const auto holds = [&](const auto& parent) {
        return is_within(path, parent);
      };
      if (std::none_of(known_.begin(), known_.end(), holds) &&
          std::none_of(report_.swapped.begin(), report_.swapped.end(), holds)) {
        report_.left.push_back(
            named(path) + ": call it by torch_attention::attend");
      }
    }
  }

  ModuleSwapReport run() {
    for (auto& child : children_) {
      *child.place = std::move(child.replacement.any);
      child.transformer->replace_module(
          child.name, std::move(child.replacement.module));
    }
    for (auto& module : modules_) {
      module.run();
    }
    return std::move(report_);
  }

 private:
  bool is_planned(const TransformerImpl& transformer, const std::string& name)
      const {
    return std::any_of(
        children_.begin(), children_.end(), [&](const PlannedChild& child) {
          return child.transformer == &transformer && child.name == name;
        });
  }

  std::vector<PlannedChild> children_;
  std::vector<detail::PlannedReplacement> modules_;
  /// the encoders and decoders that are not in a `torch::nn::Transformer`
  std::vector<std::string> known_;
  ModuleSwapReport report_;
};

} // namespace

torch::Tensor attend(
    const torch::nn::MultiheadAttention& module,
    const torch::Tensor& query,
    const torch::Tensor& key,
    const torch::Tensor& value,
    const torch::Tensor& key_padding_mask,
    const torch::Tensor& attn_mask) {
  auto& m = *module.ptr();
  check_shapes(m, query, key, value);
  const auto H = m.options.num_heads();
  const detail::MultiheadScores scores{
      query.size(1), H, query.size(0), key.size(0), query.device()};
  auto masks = detail::read_masks(key_padding_mask, attn_mask, scores);
  auto heads = projected(m, query, key, value);
  add_keys(m, heads[1], heads[2], masks);
  functional::ScaledDotProductAttentionFuncOptions options;
  options.dropout(m.options.dropout()).training(m.is_training());
  options.mask(masks.hidden).bias(masks.bias);
  const auto context = functional::scaled_dot_product_attention(
      to_heads(heads[0], H),
      to_heads(heads[1], H),
      to_heads(heads[2], H),
      options);
  // (B, H, T, D) -> (T, B, C)
  return linear(
      context.permute({2, 0, 1, 3}).reshape(query.sizes()),
      m.out_proj->weight,
      m.out_proj->bias);
}

ModuleSwapReport swap_attention(torch::nn::Module& model) {
  Plan plan;
  for (const auto& path : paths_of<TransformerImpl>(model)) {
    auto& transformer = dynamic_cast<TransformerImpl&>(module_at(model, path));
    plan.add_child<SwappedTransformerEncoderImpl, TransformerEncoderImpl>(
        transformer, path, "encoder", transformer.encoder);
    plan.add_child<SwappedTransformerDecoderImpl, TransformerDecoderImpl>(
        transformer, path, "decoder", transformer.decoder);
  }
  plan.add_all<SwappedTransformerEncoderImpl, TransformerEncoderImpl>(
      model, "SwappedTransformerEncoder");
  plan.add_all<SwappedTransformerDecoderImpl, TransformerDecoderImpl>(
      model, "SwappedTransformerDecoder");
  plan.leave_others(model);
  return plan.run();
}

} // namespace torch_attention
