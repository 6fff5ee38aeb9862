#pragma once

#include <torch/arg.h>
#include <torch/types.h>

#include <torch_attention/export.h>
#include <torch_attention/nn/options/score_function.h>

namespace torch_attention {

namespace detail {
struct OptionFields;
}

/// Arguments of one call of a module's `forward`, beside its input: which keys
/// are padding or how sequences are packed without it, what else is hidden or
/// added, where the tokens stand.
///
/// Sizes: `B` sequences, `H` heads, `T` queries, `S` keys (`T` in
/// self-attention). The scores are (B, H, T, S), or (B, T, S) in modules of one
/// head. Whatever is given holds together with the module's own `causal`,
/// windows and chunks: a key is hidden if one of them hides it, and a query
/// from which all are hidden gives a context of zeros.
///
/// All tensors are on the device of the input, but for `key_lengths` and
/// `positions`, which may also be on the CPU, and `cu_seqlens` and
/// `cu_seqlens_k`, which are best there: they are read there.
///
/// Example:
/// ```
/// // attention_mask of a tokenizer: 1 for tokens, 0 for padding
/// auto context = attention->forward(
///     x, ForwardOptions().key_padding_mask(attention_mask.eq(0)));
/// ```
struct TORCH_ATTENTION_API ForwardOptions {
  /// integer tensor (B + 1), 0, n1, n1 + n2, ...: the input is B sequences of
  /// n1, n2, ... tokens, one after the other without padding, (N, d_in) or
  /// (1, N, d_in), and so is the output. Each attends to itself alone and
  /// begins at position 0; `context_length` bounds each. The arguments below
  /// are those of the padded batch (B, T = S = longest), of which each sequence
  /// reads its first rows and columns, but for `positions`, `rotary_cos` and
  /// `rotary_sin`, which are of the N tokens, and `key_padding_mask`, which
  /// there is no need for. Default: not packed
  TORCH_ARG(torch::Tensor, cu_seqlens) = {};

  /// the same of the context of `CrossAttention`, of as many sequences; beside
  /// `cu_seqlens`. Default: none
  TORCH_ARG(torch::Tensor, cu_seqlens_k) = {};

  /// integer tensor (B): how many keys each sequence has; those after them are
  /// padding, which is hidden and may be NaN. Default: S
  TORCH_ARG(torch::Tensor, key_lengths) = {};

  /// bool tensor (B, S), or (S) without a batch: true hides a key of a
  /// sequence, from all queries and heads, wherever the padding is. Chunks
  /// begin at the first key of each sequence that it leaves, unless `positions`
  /// say otherwise. Default: none
  TORCH_ARG(torch::Tensor, key_padding_mask) = {};

  /// bool tensor, true hides: (T, S) for all, or with as many dimensions as the
  /// scores, each of their size or 1. Default: none
  TORCH_ARG(torch::Tensor, mask) = {};

  /// floating-point tensor of the same shapes, added to the scores after the
  /// scale; -inf hides. Default: none
  TORCH_ARG(torch::Tensor, bias) = {};

  /// int64 tensor (B, T), or (T) without a batch: tokens of one number that is
  /// not negative see each other to both sides, beside what `causal` lets them
  /// see; those of a negative number see what they see without it. For the
  /// tokens of an image in a prompt, as Gemma 3 and PaliGemma have them: 0 for
  /// those of the first image, 1 for those of the second, and -1 for text.
  /// Windows, padding and masks still hide, but `block_scope` of the module may
  /// say otherwise. With `cu_seqlens` it is that of the padded batch. Not
  /// beside `alibi` or `chunk`, and not where several processes share the
  /// tokens. Modules that are not causal do not read it. Default: none
  TORCH_ARG(torch::Tensor, visible_blocks) = {};

  /// integer tensor (T) or (B, T), none negative: the positions of the tokens
  /// for `rotary`, `alibi`, `chunk` and `temperature`; `causal` and windows go
  /// by the order of the tokens. For left-padded batches count the tokens that
  /// are not padding. Modules with none of them do not read it, so that all
  /// layers of a model may get the same. With `alibi` a tensor (B, H, T, T) is
  /// formed, with `chunk` one of (B, T, T); not with either beside
  /// `cu_seqlens`. Default: 0, 1, ..., T - 1
  TORCH_ARG(torch::Tensor, positions) = {};

  /// cosines of the angles by which the tokens are rotated, floating-point (T,
  /// pairs) or (B, T, pairs) with pairs = dim / 2 of `rotary`, in place of
  /// those that its theta and scaling make: for positions of several
  /// dimensions, as of images. Beside `rotary_sin`, and without `positions`.
  /// Modules without `rotary` do not read it. Default: none
  TORCH_ARG(torch::Tensor, rotary_cos) = {};

  /// the sines of the same angles. Default: none
  TORCH_ARG(torch::Tensor, rotary_sin) = {};

  /// function of the caller's that changes the scores after all of the above
  /// and the module's own rules, right before the softmax; gradients go through
  /// it. For what no option does: scores of other heads mixed in, all but the
  /// largest hidden, a bias that depends on the score. It is computed by
  /// kReference, whatever kAuto means otherwise, with memory of T x S; a module
  /// of kFused refuses it, as do modules whose heads or tokens several
  /// processes share. Beside `cu_seqlens` it is called for each sequence by
  /// itself, with scores (1, H, T, S). Default: none
  TORCH_ARG(ScoreFunction, scores) = {};

  friend struct detail::OptionFields;
};

/// Arguments of one call of `decode`, beside input and cache.
///
/// Example:
/// ```
/// auto context = attention->decode(
///     prompts, cache, DecodeOptions(lengths).left_padded(true));
/// ```
struct TORCH_ATTENTION_API DecodeOptions {
  /// Not explicit: the lengths may be given in the place of the options.
  // NOLINTNEXTLINE(google-explicit-constructor)
  DecodeOptions(torch::Tensor new_lengths = {});

  /// integer tensor (B), in [0, T]: how many of the T tokens each sequence has.
  /// Default: T
  TORCH_ARG(torch::Tensor, new_lengths);

  /// the tokens of each sequence are its last ones, and the padding comes
  /// before them. Default: false
  TORCH_ARG(bool, left_padded) = false;

  /// floating-point tensor that is added to the scores after the scale, such as
  /// a `RelativeBias` gives: (T, S), or (B, H, T, S) each of that size or 1,
  /// for the S tokens of the longest sequence with the new ones. Not with a
  /// cache that has a `window` or `chunk`, nor with `left_padded`. Default:
  /// none
  TORCH_ARG(torch::Tensor, bias) = {};

  /// as in `ForwardOptions`, of the T new tokens: a block has to come in one
  /// call, since what cached tokens saw is computed. Default: none
  TORCH_ARG(torch::Tensor, visible_blocks) = {};

  /// as in `ForwardOptions`, for the T new tokens. Default: none
  TORCH_ARG(torch::Tensor, rotary_cos) = {};

  /// Default: none
  TORCH_ARG(torch::Tensor, rotary_sin) = {};

  /// function that changes the scores (B, H, T, S), as in `ForwardOptions`,
  /// where S is as for `bias`; not where a bias is refused. Default: none
  TORCH_ARG(ScoreFunction, scores) = {};
};

} // namespace torch_attention
