#pragma once

#include <torch/arg.h>
#include <torch/types.h>

#include <torch_attention/export.h>
#include <torch_attention/nn/options/block_mask.h>
#include <torch_attention/nn/options/score_function.h>

namespace torch_attention {

namespace detail {
struct OptionFields;
}

/// Arguments of one call of a module's `forward` in addition to its input:
/// padding or packed sequences, masks and biases, positions.
///
/// Sizes: `B` sequences, `H` heads, `T` queries, `S` keys (`T` in
/// self-attention). The scores are (B, H, T, S), or (B, T, S) in modules with
/// one head. All arguments combine with the `causal`, windows and chunks of the
/// module: a key is hidden if any of them hides it. A query whose keys are all
/// hidden gets a context of zeros.
///
/// All tensors are on the device of the input, except that `key_lengths` and
/// `positions` may be on the CPU, and `cu_seqlens` and `cu_seqlens_k` should
/// be, since they are read there.
///
/// Example:
/// ```
/// // attention_mask of a tokenizer: 1 for tokens, 0 for padding
/// auto context = attention->forward(
///     x, ForwardOptions().key_padding_mask(attention_mask.eq(0)));
/// ```
struct TORCH_ATTENTION_API ForwardOptions {
  /// integer tensor (B + 1), 0, n1, n1 + n2, ...: the input contains B packed
  /// sequences of n1, n2, ... tokens without padding, (N, d_in) or
  /// (1, N, d_in), and so does the output. Each sequence attends only to
  /// itself, starts at position 0 and has at most `context_length` tokens. The
  /// arguments below have the shapes for the padded batch (B, T = S = longest),
  /// of which each sequence reads its first rows and columns; but `positions`,
  /// `rotary_cos` and `rotary_sin` are for the N tokens, and `key_padding_mask`
  /// is refused. Default: not packed
  TORCH_ARG(torch::Tensor, cu_seqlens) = {};

  /// `cu_seqlens` of the context of `CrossAttention`, for as many sequences;
  /// requires `cu_seqlens`. Default: none
  TORCH_ARG(torch::Tensor, cu_seqlens_k) = {};

  /// integer tensor (B): the number of keys of each sequence. Later keys are
  /// padding: hidden, and they may be NaN. Default: S
  TORCH_ARG(torch::Tensor, key_lengths) = {};

  /// bool tensor (B, S), or (S) without a batch: true hides a key from all
  /// queries and heads of its sequence. Padding may be anywhere. Chunks start
  /// at the first key of each sequence that is not padding, unless `positions`
  /// are set. Default: none
  TORCH_ARG(torch::Tensor, key_padding_mask) = {};

  /// bool tensor, true hides: (T, S) for all heads and sequences, or with as
  /// many dimensions as the scores, each of their size or 1. Default: none
  TORCH_ARG(torch::Tensor, mask) = {};

  /// mask as tiles, made once for all layers: for T queries and S keys, B
  /// sequences or 1 and H heads or 1; with `cu_seqlens` for the padded batch.
  /// Refused if the tokens are distributed over processes. Default: none
  TORCH_ARG(BlockMask, block_mask) = {};

  /// floating-point tensor with a shape as for `mask`, added to the scores
  /// after the scale; -inf hides. Default: none
  TORCH_ARG(torch::Tensor, bias) = {};

  /// int64 tensor (B, T), or (T) without a batch: tokens with the same number
  /// >= 0 form a block and see each other in both directions, in addition to
  /// what `causal` lets them see; a negative number means no block. For the
  /// tokens of images in a prompt, as in Gemma 3 and PaliGemma: 0 for the first
  /// image, 1 for the second, and -1 for text. Windows, padding and masks still
  /// hide, depending on the module's `block_scope`. With `cu_seqlens` it has
  /// the shape for the padded batch. Refused with `alibi` or `chunk`, and if
  /// the tokens are distributed over processes. Ignored by modules that are not
  /// causal. Default: none
  TORCH_ARG(torch::Tensor, visible_blocks) = {};

  /// integer tensor (T) or (B, T), none negative: the positions of the tokens
  /// for `rotary`, `alibi`, `chunk` and `temperature`; `causal` and windows use
  /// the indices of the tokens. For left-padded batches count the tokens that
  /// are not padding. Modules with none of these options ignore it, so that a
  /// model can pass it to all layers. `alibi` then forms a tensor (B, H, T, T),
  /// `chunk` one of (B, T, T); both refuse it with `cu_seqlens`. Default: 0, 1,
  /// ..., T - 1
  TORCH_ARG(torch::Tensor, positions) = {};

  /// cosines of the rotary angles, floating-point (T, pairs) or (B, T, pairs)
  /// with pairs = dim / 2 of `rotary`, instead of those computed from its theta
  /// and scaling: for positions of several dimensions, such as in images.
  /// Requires `rotary_sin` and excludes `positions`. Ignored by modules without
  /// `rotary`. Default: none
  TORCH_ARG(torch::Tensor, rotary_cos) = {};

  /// sines of the same angles, of the shape of `rotary_cos`. Default: none
  TORCH_ARG(torch::Tensor, rotary_sin) = {};

  /// floating-point tensor of the shape of x, or of the context in
  /// `CrossAttention`: the tokens that values are projected from instead of x
  /// or the context. For models that add position embeddings only to what
  /// queries and keys are projected from, as DETR (Carion et al. 2020) and the
  /// mask decoder of SAM do:
  /// `attention(x + positions, ForwardOptions().value_input(x))`. An output
  /// gate is still projected from x. Refused by modules with one head, their
  /// wrapper and `LatentAttention`, and by `decode`. Default: x or the context
  TORCH_ARG(torch::Tensor, value_input) = {};

  /// bool tensor (B, T), true for the tokens that all tokens see, and that see
  /// all tokens. Refused by all modules but `LongformerAttention`. Default:
  /// none
  TORCH_ARG(torch::Tensor, global_tokens) = {};

  /// function that changes the scores after all arguments above and all options
  /// of the module, right before the softmax; differentiable. For rules without
  /// an option: mixing the scores of heads, hiding all but the largest, a bias
  /// that depends on the score. It always uses kReference, which needs memory
  /// for T x S. Refused by modules with kFused, and if heads or tokens are
  /// distributed over processes. With `cu_seqlens` it is called once for each
  /// sequence, with scores (1, H, T, S). Default: none
  TORCH_ARG(ScoreFunction, scores) = {};

  friend struct detail::OptionFields;
};

/// Arguments of one call of `decode` in addition to input and cache.
///
/// Example:
/// ```
/// auto context = attention->decode(
///     prompts, cache, DecodeOptions(lengths).left_padded(true));
/// ```
struct TORCH_ATTENTION_API DecodeOptions {
  /// Not explicit, so that callers can pass only the lengths.
  // NOLINTNEXTLINE(google-explicit-constructor)
  DecodeOptions(torch::Tensor new_lengths = {});

  /// integer tensor (B), in [0, T]: how many of the T tokens each sequence has;
  /// the others are padding. Default: T
  TORCH_ARG(torch::Tensor, new_lengths);

  /// padding comes before the tokens of each sequence instead of after them.
  /// Default: false
  TORCH_ARG(bool, left_padded) = false;

  /// floating-point tensor that is added to the scores after the scale, for
  /// example from a `RelativeBias`: (T, S), or (B, H, T, S) with each size as
  /// stated or 1, where S is the length of the longest sequence including the
  /// new tokens. Refused with `left_padded`, and if the cache has a `window` or
  /// `chunk`. Default: none
  TORCH_ARG(torch::Tensor, bias) = {};

  /// mask as tiles for the T new tokens and the rows of the cache, which are
  /// the S of `bias`: its `query_offsets` are the lengths of the cache before.
  /// Refused where a bias is. Default: none
  TORCH_ARG(BlockMask, block_mask) = {};

  /// blocks of the T new tokens, as in `ForwardOptions`. All tokens of a block
  /// have to be in one call, since cached tokens cannot see later ones.
  /// Default: none
  TORCH_ARG(torch::Tensor, visible_blocks) = {};

  /// cosines for the T new tokens, as in `ForwardOptions`. Default: none
  TORCH_ARG(torch::Tensor, rotary_cos) = {};

  /// sines for the T new tokens, as in `ForwardOptions`. Default: none
  TORCH_ARG(torch::Tensor, rotary_sin) = {};

  /// function that changes the scores (B, H, T, S), as in `ForwardOptions`,
  /// with S as for `bias`. Refused where a bias is. Default: none
  TORCH_ARG(ScoreFunction, scores) = {};
};

} // namespace torch_attention
