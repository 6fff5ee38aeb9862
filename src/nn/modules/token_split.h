#pragma once

#include <torch_attention/nn/functional/attention.h>

#include <torch/types.h>

#include <cstdint>
#include <memory>

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

  int64_t num_processes = 1;
};

using TokenSplitPointer = std::shared_ptr<const TokenSplit>;

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
