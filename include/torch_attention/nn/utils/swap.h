#pragma once

#include <torch/nn/module.h>
#include <torch/nn/modules/activation.h>
#include <torch/nn/modules/container/any.h>
#include <torch/nn/pimpl.h>

#include <torch_attention/export.h>
#include <torch_attention/nn/modules/cross_attention.h>
#include <torch_attention/nn/modules/multi_head_attention.h>

#include <cstdint>
#include <memory>
#include <string>
#include <typeinfo>
#include <utility>

/// Functions that put our modules into existing models.
namespace torch_attention {

namespace detail {

/// A `module` in the two forms that LibTorch's containers hold.
struct Replacement {
  std::shared_ptr<torch::nn::Module> module;
  torch::nn::AnyModule any;
};

TORCH_ATTENTION_API std::shared_ptr<torch::nn::Module> replace_module(
    torch::nn::Module& root,
    const std::string& path,
    Replacement replacement);

/// Returns the parent of the module at `path`.
TORCH_ATTENTION_API torch::nn::Module& parent_of(
    torch::nn::Module& root,
    const std::string& path);

/// Throws unless the module at `path` is the one that a member of its parent
/// holds. `held` is the member's module, `expected` the class that declares the
/// member, and `is_expected` whether the parent is of this class.
TORCH_ATTENTION_API void check_member(
    torch::nn::Module& root,
    const std::string& path,
    const std::type_info& expected,
    bool is_expected,
    const torch::nn::Module* held);

/// Replaces the module at `path` in the tree only, and returns the old one.
TORCH_ATTENTION_API std::shared_ptr<torch::nn::Module> replace_child(
    torch::nn::Module& root,
    const std::string& path,
    std::shared_ptr<torch::nn::Module> replacement);

template <typename Impl>
const torch::nn::Module* held_by(const std::shared_ptr<Impl>& member) {
  return member.get();
}

template <typename Impl>
const torch::nn::Module* held_by(const torch::nn::ModuleHolder<Impl>& member) {
  return member.is_empty() ? nullptr : member.get();
}

inline const torch::nn::Module* held_by(const torch::nn::AnyModule& member) {
  return member.is_empty() ? nullptr : member.ptr().get();
}

template <typename Impl>
std::shared_ptr<torch::nn::Module> pointer_to(
    const std::shared_ptr<Impl>& replacement) {
  return replacement;
}

template <typename Impl>
std::shared_ptr<torch::nn::Module> pointer_to(
    const torch::nn::ModuleHolder<Impl>& replacement) {
  return replacement.ptr();
}

} // namespace detail

/// Replaces the module at a dotted path of a module tree, such as
/// "blocks.3.att", and returns the module that was there.
///
/// A child of `torch::nn::Sequential`, `ModuleList` or `ModuleDict` is replaced
/// both in the tree and in the calls of `forward`. Any other parent calls its
/// child by a C++ member, which a path does not reach: if the old module is
/// still held elsewhere, this throws and changes nothing. For such a child, use
/// the function below, which also takes the member.
///
/// Throws c10::Error if there is no module at `path`; the message names the
/// children that exist.
///
/// Example:
/// ```
/// replace_module(*model, "blocks.3", MultiHeadAttention(options));
/// ```
template <typename Impl>
std::shared_ptr<torch::nn::Module> replace_module(
    torch::nn::Module& root,
    const std::string& path,
    const std::shared_ptr<Impl>& replacement) {
  return detail::replace_module(
      root, path, {replacement, torch::nn::AnyModule(replacement)});
}

/// Replaces a module by the module of a holder.
template <typename Impl>
std::shared_ptr<torch::nn::Module> replace_module(
    torch::nn::Module& root,
    const std::string& path,
    const torch::nn::ModuleHolder<Impl>& replacement) {
  return replace_module(root, path, replacement.ptr());
}

/// Replaces the module at `path` in the tree and in `member`, the C++ member by
/// which its parent calls it, and returns the module that was there.
///
/// The member's class must be able to hold the replacement: a holder or
/// `std::shared_ptr` of the same class, or `torch::nn::AnyModule`. A member of
/// type `torch::nn::MultiheadAttention` cannot hold our module; declare it as
/// `MultiHeadAttention`, made by `from_multihead_attention`.
///
/// Throws c10::Error, and changes nothing, if there is no module at `path`, its
/// parent is no `Parent`, or the member holds another module.
///
/// Example:
/// ```
/// replace_module(
///     *model, "blocks.3.att", &BlockImpl::att, MultiHeadAttention(options));
/// ```
template <typename Parent, typename Member, typename Replacement>
std::shared_ptr<torch::nn::Module> replace_module(
    torch::nn::Module& root,
    const std::string& path,
    Member Parent::*member,
    const Replacement& replacement) {
  auto* parent = dynamic_cast<Parent*>(&detail::parent_of(root, path));
  detail::check_member(
      root,
      path,
      typeid(Parent),
      parent != nullptr,
      parent == nullptr ? nullptr : detail::held_by(parent->*member));
  Member replaced(replacement);
  auto old = detail::replace_child(root, path, detail::pointer_to(replacement));
  parent->*member = std::move(replaced);
  return old;
}

/// Returns a `MultiHeadAttention` with the weights (copies), dropout, dtype,
/// device and training mode of a `torch::nn::MultiheadAttention`:
/// self-attention whose query, key and value are one tensor.
///
/// `causal` is the option of the new module: LibTorch's module does not store
/// it, since the model passes a mask to each `forward`, or none.
///
/// Ours takes (B, T, C), LibTorch's (T, B, C); both compute the same function.
/// Pass masks of `forward` as `ForwardOptions`.
///
/// Throws c10::Error for `kdim` or `vdim` other than `embed_dim`, `add_bias_kv`
/// and `add_zero_attn`, which self-attention does not have.
///
/// Example:
/// ```
/// auto attention = from_multihead_attention(
///     *source, /*context_length=*/1024, /*causal=*/true);
/// ```
TORCH_ATTENTION_API MultiHeadAttention from_multihead_attention(
    const torch::nn::MultiheadAttentionImpl& source,
    int64_t context_length,
    bool causal);

/// Returns a `CrossAttention` with the weights (copies), dropout, dtype, device
/// and training mode of a `torch::nn::MultiheadAttention` whose key and value
/// are one tensor, the context. Ours takes (B, T, C), LibTorch's (T, B, C).
///
/// Throws c10::Error for a `kdim` other than `vdim`, `add_bias_kv` and
/// `add_zero_attn`.
///
/// Example:
/// ```
/// auto attention = cross_from_multihead_attention(*layer->multihead_attn);
/// auto y = attention->forward(x, context);
/// ```
TORCH_ATTENTION_API CrossAttention
cross_from_multihead_attention(const torch::nn::MultiheadAttentionImpl& source);

} // namespace torch_attention
