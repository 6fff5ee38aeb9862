#pragma once

#include <nn/modules/head_split.h>
#include <torch_attention/nn/functional/attention.h>

#include <torch/types.h>

#include <c10/util/Exception.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <string>

/// The tokens of sequences, shared by several processes.
namespace torch_attention::detail {

/// The services of other processes that a module with a part of the tokens
/// uses. `src/distributed` implements it.
class TokenSplit {
 public:
  TokenSplit() = default;
  TokenSplit(const TokenSplit&) = delete;
  TokenSplit& operator=(const TokenSplit&) = delete;
  virtual ~TokenSplit() = default;

  /// Returns where `num_own` own tokens stand in the sequence, int64.
  virtual torch::Tensor positions(int64_t num_own) const = 0;

  /// Returns the largest of all processes' numbers. `device` is one that they
  /// can send from.
  virtual int64_t longest(int64_t own, torch::Device device) const = 0;

  /// Returns the attention of own queries to the keys of all processes.
  virtual torch::Tensor attend(
      const torch::Tensor& query,
      const torch::Tensor& key,
      const torch::Tensor& value,
      const functional::ScaledDotProductAttentionFuncOptions& options)
      const = 0;

  /// Returns the attention of own queries to the keys of a context, which is
  /// split as the queries are unless it is whole in each process.
  virtual torch::Tensor attend_to_context(
      const torch::Tensor& query,
      const torch::Tensor& key,
      const torch::Tensor& value,
      const functional::ScaledDotProductAttentionFuncOptions& options)
      const = 0;

  /// Returns the attention of queries that all processes have to the own keys
  /// and those of the others. In `options` lengths, mask and bias are for the
  /// own keys.
  virtual torch::Tensor attend_to_parts(
      const torch::Tensor& query,
      const torch::Tensor& key,
      const torch::Tensor& value,
      const functional::ScaledDotProductAttentionFuncOptions& options)
      const = 0;

  /// Begins to compare `text` with that of the other processes. The function
  /// that it returns waits, and throws c10::Error in all if one differs.
  virtual std::function<void()> compare(
      const char* name,
      const std::string& text,
      torch::Device device) const = 0;

  /// Sends an error of this process alone in the place of what `forward` sends
  /// first.
  virtual void tell(const std::string& error, torch::Device device) const = 0;

  int64_t rank = 0;
  int64_t num_processes = 1;
  bool whole_context = false;
};

using TokenSplitPointer = std::shared_ptr<const TokenSplit>;

/// Calls `check`, which throws c10::Error if something is wrong, and `tell`
/// with the error.
template <typename Check, typename Tell>
void check_and_tell(const Check& check, const Tell& tell) {
  try {
    check();
  } catch (const c10::Error& error) {
    tell(error.what_without_backtrace());
    throw;
  }
}

/// Calls `check`, which throws c10::Error if something is wrong; the processes
/// that share heads or tokens are told.
template <typename Check>
void check_together(
    const char* name,
    const torch::Tensor& x,
    const HeadSplitPointer& heads,
    const TokenSplitPointer& tokens,
    const Check& check) {
  if (tokens == nullptr) {
    check_together(name, x, heads, check);
    return;
  }
  check_and_tell(check, [&](const std::string& error) {
    tokens->tell(error, x.defined() ? x.device() : torch::kCPU);
  });
}

/// Begins to compare one call of `decode` in all processes, by `text()`, after
/// `check`, which throws c10::Error, in all, if something is wrong here. The
/// function that it returns waits, and throws if the texts differ. Without
/// `split` it only checks, and tells those that share `heads`.
template <typename Check, typename Text>
std::function<void()> compared_decode(
    const char* name,
    const HeadSplitPointer& heads,
    const TokenSplit* split,
    const torch::Tensor& x,
    const ScoreFunction& scores,
    const Check& check,
    const Text& text) {
  if (split == nullptr) {
    check_together(name, x, heads, check);
    return [] {};
  }
  const auto device = x.defined() ? x.device() : torch::Device(torch::kCPU);
  check_and_tell(
      [&] {
        check();
        TORCH_CHECK(
            x.is_cpu(),
            name,
            ": expected tokens on the CPU for decode, where several processes "
            "share the keys, but got some on ",
            x.device());
        TORCH_CHECK(
            !scores,
            name,
            ": expected no function `scores`, where several processes share "
            "the tokens");
      },
      [&](const std::string& error) { split->compare(name, error, device)(); });
  return split->compare(
      name,
      c10::str("decode of ", x.scalar_type(), ' ', x.sizes(), text()),
      device);
}

/// Returns ", what dtype shape layout device" for such a text.
inline std::string text_of(const char* what, const torch::Tensor& x) {
  return x.defined() ? c10::str(
                           ", ",
                           what,
                           ' ',
                           x.scalar_type(),
                           ' ',
                           x.sizes(),
                           ' ',
                           x.layout(),
                           ' ',
                           x.device())
                     : "";
}

/// Returns how many of the first `lengths`, int64 (B), tokens of a context are
/// among `num_own` own ones. They are the first of these.
inline torch::Tensor own_lengths(
    const TokenSplit& split,
    const torch::Tensor& lengths,
    int64_t num_own) {
  return split.positions(num_own).lt(lengths.unsqueeze(1)).sum(1);
}

/// Gives src/distributed what modules hide.
struct TokenSplitAccess {
  template <typename Module>
  static TokenSplitPointer& of(Module& module) {
    return module.token_split_;
  }
  template <typename Module>
  static const TokenSplitPointer& of(const Module& module) {
    return module.token_split_;
  }
};

} // namespace torch_attention::detail
