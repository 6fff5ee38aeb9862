#pragma once

#include <torch/nn/cloneable.h>
#include <torch/nn/modules/common.h>
#include <torch/nn/modules/container/any.h>
#include <torch/nn/modules/dropout.h>
#include <torch/nn/modules/linear.h>
#include <torch/nn/pimpl.h>
#include <torch/types.h>

#include <torch_attention/export.h>
#include <torch_attention/nn/options/forward.h>
#include <torch_attention/nn/options/longformer_attention.h>

#include <cstdint>
#include <iosfwd>
#include <tuple>

namespace torch_attention {

/// Multi-head attention of long texts (Beltagy et al. 2020, "Longformer: The
/// Long-Document Transformer"; `LongformerSelfAttention` and LED's encoder in
/// Python). A token sees its neighbours, half of `attention_window` on each
/// side, and all global tokens. A global token sees all tokens, by projections
/// of its own: `W_query_global` of itself, `W_key_global` and `W_value_global`
/// of the tokens that it sees.
///
/// Takes any number of tokens, which need not be a multiple of the window.
/// Time and memory grow with T times the window, on the CPU; other devices get
/// a mask (T, T) if there are global tokens.
///
/// Example:
/// ```
/// LongformerAttention attention(LongformerAttentionOptions(768, 768, 12));
/// auto is_global = torch::zeros({2, 4096}, torch::kBool);
/// is_global.select(1, 0).fill_(true); // the first token of each text
/// auto context = attention->forward(
///     torch::rand({2, 4096, 768}), ForwardOptions().global_tokens(is_global));
/// ```
class TORCH_ATTENTION_API LongformerAttentionImpl
    : public torch::nn::Cloneable<LongformerAttentionImpl> {
 public:
  LongformerAttentionImpl(int64_t d_in, int64_t d_out, int64_t num_heads);
  explicit LongformerAttentionImpl(const LongformerAttentionOptions& options_);

  void reset() override;
  /// Draws the projections as `torch::nn::Linear` does.
  void reset_parameters();
  void pretty_print(std::ostream& stream) const override;

  /// x (B, T, d_in) -> (B, T, d_out). Of `call`, it takes `global_tokens`,
  /// `key_padding_mask` and `key_lengths`, and refuses all others. No token
  /// sees padding; that of `key_padding_mask` has a context of zeros, as in
  /// Python.
  /// Throws c10::Error if shapes, dtypes or devices do not fit.
  torch::Tensor forward(
      const torch::Tensor& x,
      const ForwardOptions& call = {});

  /// Returns the output of `forward` and the attention weights (B, num_heads,
  /// T, T), after dropout.
  std::tuple<torch::Tensor, torch::Tensor> forward_with_weights(
      const torch::Tensor& x,
      const ForwardOptions& call = {});

  /// The options with which this `Module` was constructed.
  LongformerAttentionOptions options;

  torch::nn::Linear W_query = nullptr;
  torch::nn::Linear W_key = nullptr;
  torch::nn::Linear W_value = nullptr;
  /// Projects global tokens to their queries.
  torch::nn::Linear W_query_global = nullptr;
  /// Projects all tokens to the keys that global tokens see.
  torch::nn::Linear W_key_global = nullptr;
  /// Projects all tokens to the values that global tokens see.
  torch::nn::Linear W_value_global = nullptr;
  torch::nn::Linear out_proj = nullptr;
  torch::nn::Dropout dropout = nullptr;

 protected:
  FORWARD_HAS_DEFAULT_ARGS({1, torch::nn::AnyValue(ForwardOptions())})
};

/// A `ModuleHolder` for `LongformerAttentionImpl`.
TORCH_MODULE(LongformerAttention);

} // namespace torch_attention
