#pragma once

#include <torch_attention/nn/options/score_rule.h>

#include <cstdint>
#include <optional>

/// An argument of `ScoreRule`, as `TORCH_ARG` declares those of options.
#define TORCH_ATTENTION_RULE(type, name)                   \
  Options& name(const type& new_##name) {                  \
    auto& options = static_cast<Options&>(*this);          \
    options.rule().name = new_##name;                      \
    return options;                                        \
  }                                                        \
  const type& name() const noexcept {                      \
    return static_cast<const Options&>(*this).rule().name; \
  }                                                        \
  type& name() noexcept {                                  \
    return static_cast<Options&>(*this).rule().name;       \
  }

namespace torch_attention {

/// The rules for scores of all options, as a base class of `Options`, which has
/// `TORCH_ARG(ScoreRule, rule)`.
template <typename Options>
class ScoreOptions {
 public:
  /// factor of the scores; T5 has 1. Default: 1 / sqrt(head_dim), the size of a
  /// query
  TORCH_ATTENTION_RULE(std::optional<double>, scale)

  /// bound the scores: after the scale, and before biases, they become
  /// softcap * tanh(score / softcap), as in Gemma 2 (Gemma Team 2024).
  /// Default: no
  TORCH_ATTENTION_RULE(std::optional<double>, softcap)
};

/// The rules for scores and positions, as a base class of `Options`, which has
/// `TORCH_ARG(ScoreRule, rule)`. The T queries are the last T of the S
/// positions, so that query t has position S - T + t; options and calls can
/// place them elsewhere.
template <typename Options>
class RuleOptions : public ScoreOptions<Options> {
 public:
  /// hide later keys: a query attends to keys up to its own position. Default:
  /// true for modules, false for functions
  TORCH_ATTENTION_RULE(bool, causal)

  /// hide the keys `window` or more positions before a query's own: with
  /// `causal`, a query attends to the `window` last tokens, itself included
  /// (sliding window, Beltagy et al. 2020). With `causal(false)` it needs
  /// `window_after`. Default: none are hidden
  TORCH_ATTENTION_RULE(std::optional<int64_t>, window)

  /// hide the keys more than `window_after` positions after a query's own. Not
  /// with `causal`, which hides them all. ModernBERT sees n to both sides by
  /// `causal(false).window(n + 1).window_after(n)`. FlashAttention's
  /// `window_size = (left, right)` counts to both sides without the query's own
  /// position: `window(left + 1).window_after(right)`. Default: none are hidden
  TORCH_ATTENTION_RULE(std::optional<int64_t>, window_after)

  /// hide the keys of other chunks than a query's own, which are the positions
  /// 0 to chunk - 1, chunk to 2 chunk - 1, and so on (Llama 4). Not with
  /// windows. Default: none are hidden
  TORCH_ATTENTION_RULE(std::optional<int64_t>, chunk)
};

} // namespace torch_attention

#undef TORCH_ATTENTION_RULE
