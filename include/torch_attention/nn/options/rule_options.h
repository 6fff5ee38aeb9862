#pragma once

#include <torch_attention/nn/options/score_rule.h>

#include <cstdint>
#include <optional>

/// Declares a setter and getters of a field of `rule()`, like `TORCH_ARG`.
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

/// The rules for scores that all options have. A base class (CRTP) of
/// `Options`, which declares `TORCH_ARG(ScoreRule, rule)`.
template <typename Options>
class ScoreOptions {
 public:
  /// factor of the scores; 1 in T5. Default: 1 / sqrt(head_dim), with the size
  /// of a query
  TORCH_ATTENTION_RULE(std::optional<double>, scale)

  /// cap the scores: after the scale and before biases they become
  /// softcap * tanh(score / softcap), as in Gemma 2 (Gemma Team 2024).
  /// Default: no
  TORCH_ATTENTION_RULE(std::optional<double>, softcap)
};

/// The rules for scores and positions. A base class (CRTP) of `Options`, which
/// declares `TORCH_ARG(ScoreRule, rule)`. By default the T queries are the last
/// T of the S positions: query t has position S - T + t. `query_offsets` and
/// caches change that.
template <typename Options>
class RuleOptions : public ScoreOptions<Options> {
 public:
  /// hide later keys: a query attends to keys up to its own position. Default:
  /// true for modules, false for functions
  TORCH_ATTENTION_RULE(bool, causal)

  /// hide keys that are `window` or more positions before the query: with
  /// `causal`, a query attends to the last `window` tokens, itself included
  /// (sliding window, Beltagy et al. 2020). With `causal(false)` it needs
  /// `window_after`. Default: no limit
  TORCH_ATTENTION_RULE(std::optional<int64_t>, window)

  /// hide keys that are more than `window_after` positions after the query. Not
  /// with `causal`, which hides all of them. ModernBERT's window of n tokens to
  /// both sides is `causal(false).window(n + 1).window_after(n)`.
  /// FlashAttention's `window_size = (left, right)` does not count the query's
  /// position: `window(left + 1).window_after(right)`. Default: no limit
  TORCH_ATTENTION_RULE(std::optional<int64_t>, window_after)

  /// hide keys outside the query's chunk; chunks are the positions 0 to
  /// chunk - 1, chunk to 2 chunk - 1, and so on (Llama 4). Not with windows.
  /// Default: no chunks
  TORCH_ATTENTION_RULE(std::optional<int64_t>, chunk)
};

} // namespace torch_attention

#undef TORCH_ATTENTION_RULE
