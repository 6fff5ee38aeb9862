#pragma once

#include <torch/nn/module.h>
#include <torch/nn/modules/activation.h>
#include <torch/nn/modules/container/any.h>
#include <torch/nn/pimpl.h>

#include <torch_attention/export.h>
#include <torch_attention/nn/modules/multi_head_attention.h>

#include <cstdint>
#include <memory>
#include <string>

/// Bringing our modules into models that exist.
namespace torch_attention {

namespace detail {

/// `module` in the two forms that LibTorch's containers hold.
struct Replacement {
  std::shared_ptr<torch::nn::Module> module;
  torch::nn::AnyModule any;
};

TORCH_ATTENTION_API std::shared_ptr<torch::nn::Module> replace_module(
    torch::nn::Module& root,
    const std::string& path,
    Replacement replacement);

} // namespace detail

/// Replaces the module at a dotted path of a module tree, such as
/// "blocks.3.att", and returns the module that was there.
///
/// A child of `torch::nn::Sequential`, `ModuleList` or `ModuleDict` is replaced
/// in what `forward` calls and in the tree. Any other parent calls its child by
/// a C++ member that no library can reach: if the old module is still held
/// elsewhere, this throws and changes nothing. Assign such a member yourself:
/// ```
/// model->att = model->replace_module("att", attention);
/// ```
///
/// Throws c10::Error if there is no module at `path`; the message names the
/// children that exist.
///
/// Example:
/// ```
/// replace_module(*model, "blocks.3.att", MultiHeadAttention(options));
/// ```
template <typename Impl>
std::shared_ptr<torch::nn::Module> replace_module(
    torch::nn::Module& root,
    const std::string& path,
    const std::shared_ptr<Impl>& replacement) {
  return detail::replace_module(
      root, path, {replacement, torch::nn::AnyModule(replacement)});
}

/// The same for a module holder.
template <typename Impl>
std::shared_ptr<torch::nn::Module> replace_module(
    torch::nn::Module& root,
    const std::string& path,
    const torch::nn::ModuleHolder<Impl>& replacement) {
  return replace_module(root, path, replacement.ptr());
}

/// A `MultiHeadAttention` with the weights (copies), dropout, dtype, device and
/// training mode of a `torch::nn::MultiheadAttention`: self-attention whose
/// query, key and value are one tensor.
///
/// Ours takes (B, T, C), LibTorch's (T, B, C); both compute the same function.
/// Without bias in `source`, ours has an `out_proj.bias` of zeros.
///
/// Throws c10::Error for `kdim` or `vdim` other than `embed_dim`, `add_bias_kv`
/// and `add_zero_attn`, which self-attention has not.
///
/// Example:
/// ```
/// auto attention = from_multihead_attention(*source, /*context_length=*/1024);
/// ```
TORCH_ATTENTION_API MultiHeadAttention from_multihead_attention(
    const torch::nn::MultiheadAttentionImpl& source,
    int64_t context_length,
    bool causal = true);

} // namespace torch_attention
