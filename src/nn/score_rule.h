#pragma once

#include <cpu/score_rule.h>

#include <ostream>
#include <tuple>
#include <type_traits>

namespace torch_attention {

namespace cpu {

inline bool operator==(const ScoreRule& a, const ScoreRule& b) {
  // Names all fields, so that none is forgotten.
  const auto tied = [](const ScoreRule& rule) {
    const auto& [scale, softcap, causal, window, window_after, chunk] = rule;
    return std::tie(scale, softcap, causal, window, window_after, chunk);
  };
  return tied(a) == tied(b);
}

inline bool operator!=(const ScoreRule& a, const ScoreRule& b) {
  return !(a == b);
}

} // namespace cpu

namespace detail {

/// Calls `visit(name, option)` for each option that makes a rule, of functions
/// and of modules alike. `option(options)` is a reference to its value, and
/// compiles for the options that have it.
template <typename Visit>
void visit_rule_options(const Visit& visit) {
  visit(
      "softcap", [](auto& o) -> decltype(o.softcap()) { return o.softcap(); });
  visit("scale", [](auto& o) -> decltype(o.scale()) { return o.scale(); });
  visit("causal", [](auto& o) -> decltype(o.causal()) { return o.causal(); });
  visit("window", [](auto& o) -> decltype(o.window()) { return o.window(); });
  visit("window_after", [](auto& o) -> decltype(o.window_after()) {
    return o.window_after();
  });
  visit("chunk", [](auto& o) -> decltype(o.chunk()) { return o.chunk(); });
}

/// Copies all options of `from` that make a rule.
template <typename From, typename To>
void copy_rule_options(const From& from, To& to) {
  visit_rule_options([&](const char* /*name*/, const auto& option) {
    using Option = decltype(option);
    if constexpr (std::is_invocable_v<Option, const From&>) {
      static_assert(
          std::is_invocable_v<Option, To&>, "The copy would lose an option.");
      option(to) = option(from);
    }
  });
}

/// Prints those that are set, but for `causal`, which is no std::optional.
template <typename Options>
void print_rule_options(std::ostream& stream, const Options& options) {
  visit_rule_options([&](const char* name, const auto& option) {
    using Option = decltype(option);
    if constexpr (std::is_invocable_v<Option, const Options&>) {
      const auto& value = option(options);
      if constexpr (!std::is_same_v<decltype(value), const bool&>) {
        if (value) {
          stream << ", " << name << "=" << *value;
        }
      }
    }
  });
}

} // namespace detail

/// Returns the rule that options ask for, those of functions and of modules
/// that have them all.
template <typename Options>
cpu::ScoreRule rule_of(const Options& options) {
  cpu::ScoreRule rule;
  // Names all fields, so that none is forgotten.
  auto& [scale, softcap, causal, window, window_after, chunk] = rule;
  scale = options.scale();
  softcap = options.softcap().value_or(0);
  causal = options.causal();
  window = options.window().value_or(0);
  window_after = options.window_after().value_or(-1);
  chunk = options.chunk().value_or(0);
  return rule;
}

} // namespace torch_attention
