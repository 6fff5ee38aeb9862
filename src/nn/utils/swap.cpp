#include <torch_attention/nn/utils/swap.h>

#include <check.h>
#include <nn/utils/planned_replacement.h>

#include <c10/util/Type.h>
#include <torch/nn/modules/container/moduledict.h>
#include <torch/nn/modules/container/modulelist.h>
#include <torch/nn/modules/container/sequential.h>

#include <algorithm>
#include <array>
#include <typeinfo>
#include <utility>
#include <vector>

namespace torch_attention {

namespace {

using ModulePtr = std::shared_ptr<torch::nn::Module>;

std::string joined(const std::vector<std::string>& names) {
  std::string result;
  for (const auto& name : names) {
    result += (result.empty() ? "\"" : ", \"") + name + "\"";
  }
  return result.empty() ? "none" : result;
}

std::vector<std::string> split_path(const std::string& path) {
  std::vector<std::string> names;
  size_t begin = 0;
  while (begin <= path.size()) {
    const auto end = std::min(path.find('.', begin), path.size());
    names.push_back(path.substr(begin, end - begin));
    begin = end + 1;
  }
  return names;
}

/// Returns the name of a module's class without "(anonymous namespace)".
std::string class_of(const torch::nn::Module& module) {
  auto name = c10::demangle(typeid(module).name());
  const std::string unnamed = "(anonymous namespace)::";
  const auto found = name.find(unnamed);
  if (found != std::string::npos) {
    name.erase(found, unnamed.size());
  }
  return name;
}

/// The position of a module in a tree.
struct Place {
  torch::nn::Module* parent;
  std::string name;
  size_t index;
};

/// Returns the index of `name` among the children of `parent`.
size_t child_index(
    const torch::nn::Module& parent,
    const std::string& parent_path,
    const std::string& name) {
  const auto names = parent.named_children().keys();
  const auto found = std::find(names.begin(), names.end(), name);
  TORCH_ATTENTION_CHECK(
      found != names.end(),
      "replace_module: {} ({}) has no child \"{}\"; its children: {}",
      parent_path.empty() ? "the root" : "\"" + parent_path + "\"",
      class_of(parent),
      name,
      joined(names));
  return static_cast<size_t>(found - names.begin());
}

Place find_place(torch::nn::Module& root, const std::string& path) {
  const auto names = split_path(path);
  auto* parent = &root;
  std::string parent_path;
  for (size_t i = 0; i + 1 < names.size(); ++i) {
    const auto index = child_index(*parent, parent_path, names[i]);
    parent = parent->children()[index].get();
    parent_path += (i == 0 ? "" : ".") + names[i];
  }
  const auto& name = names.back();
  return {parent, name, child_index(*parent, parent_path, name)};
}

void check_not_empty(const ModulePtr& replacement, const std::string& path) {
  TORCH_ATTENTION_CHECK(
      replacement != nullptr,
      "replace_module: the replacement for \"{}\" is empty",
      path);
}

/// Returns advice on replacing `old`, which a member of `parent` holds.
std::string advice_for_member(
    const torch::nn::Module& parent,
    const std::string& path,
    const torch::nn::Module& old,
    const torch::nn::Module& replacement) {
  const auto parent_class = class_of(parent);
  const auto old_class = class_of(old);
  const auto new_class = class_of(replacement);
  // A child may be registered under another name than the member's.
  const auto call = "replace_module(root, \"" + path + "\", &" + parent_class +
      "::<the member that holds it>, replacement)";
  if (old_class == new_class) {
    return "pass that member as well: " + call;
  }
  if (parent_class.rfind("torch::nn::", 0) == 0) {
    return "no member of LibTorch's " + parent_class + " can hold a " +
        new_class +
        ": write a class of your own in its place, whose member can";
  }
  return "a member declared for " + old_class + " cannot hold a " + new_class +
      ": declare it for that class or as torch::nn::AnyModule; an AnyModule is "
      "replaced by " +
      call;
}

/// Returns whether the parent is a container of LibTorch, which stores its
/// modules also outside of the module tree.
bool is_container(const torch::nn::Module& parent) {
  return parent.as<torch::nn::SequentialImpl>() != nullptr ||
      parent.as<torch::nn::ModuleListImpl>() != nullptr ||
      parent.as<torch::nn::ModuleDictImpl>() != nullptr;
}

/// Replaces the module that a container stores for its `forward`.
void replace_in_container(
    torch::nn::Module& parent,
    size_t index,
    detail::Replacement& replacement) {
  const auto offset = static_cast<std::ptrdiff_t>(index);
  if (auto* sequential = parent.as<torch::nn::SequentialImpl>()) {
    *(sequential->begin() + offset) = std::move(replacement.any);
  } else if (auto* list = parent.as<torch::nn::ModuleListImpl>()) {
    *(list->begin() + offset) = replacement.module;
  } else if (auto* dict = parent.as<torch::nn::ModuleDictImpl>()) {
    (dict->begin() + offset)->value() = replacement.module;
  }
}

void check_no_added_tokens(
    const char* function,
    const char* ours,
    const torch::nn::MultiheadAttentionOptions& options) {
  TORCH_ATTENTION_CHECK(
      !options.add_bias_kv() && !options.add_zero_attn(),
      "{}: expected add_bias_kv = add_zero_attn = false, which add "
      "tokens that {} does not have",
      function,
      ours);
}

void check_source(const torch::nn::MultiheadAttentionOptions& options) {
  constexpr const char* kFunction = "from_multihead_attention";
  TORCH_ATTENTION_CHECK(
      options.kdim() == options.embed_dim() &&
          options.vdim() == options.embed_dim(),
      "cross_from_multihead_attention: expected kdim = vdim = embed_dim "
      "= {}, since self-attention has one input, but got kdim = {}, vdim "
      "= {}",
      options.embed_dim(),
      options.kdim(),
      options.vdim());
  check_no_added_tokens(kFunction, "MultiHeadAttention", options);
}

/// Copies weights, dtype, device and training mode of LibTorch's module into
/// ours.
template <typename Impl>
void copy_weights(
    const torch::nn::MultiheadAttentionImpl& source,
    Impl& result) {
  const auto& out = source.out_proj->weight;
  result.to(out.device(), out.scalar_type());
  result.train(source.is_training());
  torch::NoGradGuard no_grad;
  // LibTorch stacks the projections if all inputs have the same size.
  const auto weights = source._qkv_same_embed_dim
      ? source.in_proj_weight.chunk(3)
      : std::vector<torch::Tensor>{
            source.q_proj_weight, source.k_proj_weight, source.v_proj_weight};
  const std::array<torch::nn::LinearImpl*, 3> projections{
      result.W_query.get(), result.W_key.get(), result.W_value.get()};
  for (size_t i = 0; i < projections.size(); ++i) {
    projections[i]->weight.copy_(weights[i]);
  }
  result.out_proj->weight.copy_(out);
  if (source.options.bias()) {
    const auto biases = source.in_proj_bias.chunk(3);
    for (size_t i = 0; i < projections.size(); ++i) {
      projections[i]->bias.copy_(biases[i]);
    }
    result.out_proj->bias.copy_(source.out_proj->bias);
  }
}

} // namespace

namespace detail {

PlannedReplacement::PlannedReplacement(
    torch::nn::Module& root,
    const std::string& path,
    Replacement replacement)
    : replacement_(std::move(replacement)) {
  check_not_empty(replacement_.module, path);
  auto place = find_place(root, path);
  parent_ = place.parent;
  name_ = std::move(place.name);
  index_ = place.index;
  old_ = parent_->children()[index_];
  // The tree and `old_` hold it; a third owner is a member of the parent or the
  // caller.
  TORCH_ATTENTION_CHECK(
      is_container(*parent_) || old_.use_count() <= 2,
      "replace_module: \"{}\" is held outside of the module tree as "
      "well. If {} holds it as a member, its forward would go on calling "
      "the old module; {}. If you hold it yourself, release it first",
      path,
      class_of(*parent_),
      advice_for_member(*parent_, path, *old_, *replacement_.module));
}

ModulePtr PlannedReplacement::run() {
  replace_in_container(*parent_, index_, replacement_);
  parent_->replace_module(name_, std::move(replacement_.module));
  return std::move(old_);
}

ModulePtr replace_module(
    torch::nn::Module& root,
    const std::string& path,
    Replacement replacement) {
  return PlannedReplacement(root, path, std::move(replacement)).run();
}

torch::nn::Module& parent_of(torch::nn::Module& root, const std::string& path) {
  return *find_place(root, path).parent;
}

void check_member(
    torch::nn::Module& root,
    const std::string& path,
    const std::type_info& expected,
    bool is_expected,
    const torch::nn::Module* held) {
  const auto [parent, name, index] = find_place(root, path);
  const auto class_name = c10::demangle(expected.name());
  TORCH_ATTENTION_CHECK(
      is_expected,
      "replace_module: expected a member of the class that holds \"{}\", "
      "which is {}, but got a member of {}",
      path,
      class_of(*parent),
      class_name);
  TORCH_ATTENTION_CHECK(
      held == parent->children()[index].get(),
      "replace_module: expected the member of {} that holds \"{}\", but "
      "got one that holds {}",
      class_name,
      path,
      held == nullptr ? "nothing" : "another module, a " + class_of(*held));
}

ModulePtr replace_child(
    torch::nn::Module& root,
    const std::string& path,
    ModulePtr replacement) {
  check_not_empty(replacement, path);
  const auto [parent, name, index] = find_place(root, path);
  auto old = parent->children()[index];
  parent->replace_module(name, std::move(replacement));
  return old;
}

} // namespace detail

MultiHeadAttention from_multihead_attention(
    const torch::nn::MultiheadAttentionImpl& source,
    int64_t context_length,
    bool causal) {
  const auto& options = source.options;
  check_source(options);
  MultiHeadAttention result(MultiHeadAttentionOptions(
                                options.embed_dim(),
                                options.embed_dim(),
                                context_length,
                                options.num_heads())
                                .dropout(options.dropout())
                                .qkv_bias(options.bias())
                                .out_bias(options.bias())
                                .causal(causal));
  copy_weights(source, *result);
  return result;
}

CrossAttention cross_from_multihead_attention(
    const torch::nn::MultiheadAttentionImpl& source) {
  constexpr const char* kFunction = "cross_from_multihead_attention";
  const auto& options = source.options;
  TORCH_ATTENTION_CHECK(
      options.kdim() == options.vdim(),
      "cross_from_multihead_attention: expected kdim = vdim, since keys "
      "and values are of one context, but got kdim = {}, vdim = {}",
      options.kdim(),
      options.vdim());
  check_no_added_tokens(kFunction, "CrossAttention", options);
  CrossAttention result(CrossAttentionOptions(
                            options.embed_dim(),
                            options.kdim(),
                            options.embed_dim(),
                            options.num_heads())
                            .dropout(options.dropout())
                            .qkv_bias(options.bias())
                            .out_bias(options.bias()));
  copy_weights(source, *result);
  return result;
}

} // namespace torch_attention
