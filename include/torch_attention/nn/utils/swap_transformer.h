#pragma once

#include <torch/nn/module.h>
#include <torch/nn/modules/activation.h>
#include <torch/types.h>

#include <torch_attention/export.h>

#include <string>
#include <vector>

/// Our attention in models of LibTorch's own modules.
namespace torch_attention {

/// The findings of `swap_attention`.
struct ModuleSwapReport {
  /// paths of the encoders and decoders that use our kernels now
  std::vector<std::string> swapped;
  /// attention that still uses LibTorch's operators: "path: reason"
  std::vector<std::string> left;
};

/// Makes the encoders and decoders in a model use our kernels: those of each
/// `torch::nn::Transformer`, and children of `torch::nn::Sequential`. Weights
/// are shared with the replaced modules, so that optimizers stay valid; keys of
/// the state dict do not change.
///
/// Modules that a class of the model holds by C++ members cannot be replaced
/// from outside and are reported: declare an encoder as
/// `SwappedTransformerEncoder`, a decoder as `SwappedTransformerDecoder`, and
/// call a MultiheadAttention by `attend`.
///
/// Example:
/// ```
/// torch::nn::Transformer model(512, 8);
/// swap_attention(*model); // report.swapped: "encoder", "decoder"
/// ```
TORCH_ATTENTION_API ModuleSwapReport swap_attention(torch::nn::Module& model);

/// Returns the first result of `module->forward(query, key, value,
/// key_padding_mask, /*need_weights=*/false, attn_mask)`, by our kernels: query
/// and result (T, B, C), key and value (S, B, C). Masks have their meaning in
/// Python: key_padding_mask (B, S) and attn_mask (T, S) or (B * H, T, S) hide
/// where they are true if they are bool, and are added to the scores if they
/// are floating-point. LibTorch's class adds a bool attn_mask as 1.
///
/// Throws c10::Error for masks of other dtypes and shapes.
///
/// Example:
/// ```
/// auto y = attend(self_attn, x, x, x, padding, causal_mask);
/// ```
TORCH_ATTENTION_API torch::Tensor attend(
    const torch::nn::MultiheadAttention& module,
    const torch::Tensor& query,
    const torch::Tensor& key,
    const torch::Tensor& value,
    const torch::Tensor& key_padding_mask = {},
    const torch::Tensor& attn_mask = {});

} // namespace torch_attention
