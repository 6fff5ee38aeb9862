#pragma once

#include <kernels/attention.h>
#include <torch_attention/nn/options/forward.h>

#include <c10/util/Exception.h>
#include <torch/types.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <string>

/// The heads of one module, shared by several processes.
namespace torch_attention::detail {

/// The services of other processes that a module with a part of the heads uses.
/// `src/distributed` implements it; modules know no more of processes.
class HeadSplit {
 public:
  HeadSplit() = default;
  HeadSplit(const HeadSplit&) = delete;
  HeadSplit& operator=(const HeadSplit&) = delete;
  virtual ~HeadSplit() = default;

  /// Begins to compare inputs, of which each process must have the same. The
  /// function that it returns waits, and throws c10::Error if they differ.
  virtual std::function<void()> compare(
      const char* name,
      const torch::Tensor& x,
      const torch::Tensor& context) const = 0;

  /// Tells the other processes, which compare, what is wrong here.
  virtual void tell(
      const char* name,
      const torch::Tensor& x,
      const std::string& error) const = 0;

  /// Returns x, whose gradient is summed over the processes.
  virtual torch::Tensor enter(const torch::Tensor& x) const = 0;

  /// Returns the sum of x over the processes, whose gradient is that of x.
  virtual torch::Tensor leave(const torch::Tensor& x) const = 0;

  /// Returns the x (..., C) of all processes side by side.
  virtual torch::Tensor gather(const torch::Tensor& x) const = 0;

  /// Returns the sum of x over the processes, and sums its gradients as well.
  virtual torch::Tensor sum(const torch::Tensor& x) const = 0;

  /// Returns a weight of key heads, whose gradient is summed over the
  /// processes that have the same ones.
  virtual torch::Tensor enter_keys(const torch::Tensor& weight) const = 0;

  /// These heads among the query heads of all processes.
  kernels::SharedHeads heads;
  int64_t num_heads = 0;
  int64_t num_processes = 1;
};

using HeadSplitPointer = std::shared_ptr<const HeadSplit>;

/// Returns the heads of this process; all heads if nothing is split.
inline kernels::SharedHeads heads_of(const HeadSplitPointer& split) {
  return split == nullptr ? kernels::SharedHeads() : split->heads;
}

/// An input of a module, on its way to heads that several processes share.
struct Entered {
  Entered(
      const char* name,
      const torch::Tensor& input,
      const torch::Tensor& context_input,
      const HeadSplitPointer& split)
      : x(input), context(context_input) {
    if (split != nullptr) {
      wait = split->compare(name, input, context_input);
      x = split->enter(input);
      context = context_input.defined() ? split->enter(context_input) : context;
    }
  }

  torch::Tensor x;
  /// Undefined in self-attention.
  torch::Tensor context;
  /// Throws c10::Error if other processes have other inputs. To be called
  /// before results are joined.
  std::function<void()> wait = [] {};
};

/// Calls `check`, which throws c10::Error if x is wrong; other processes, whose
/// x may be right, are told.
template <typename Check>
void check_together(
    const char* name,
    const torch::Tensor& x,
    const HeadSplitPointer& split,
    const Check& check) {
  if (split == nullptr) {
    check();
    return;
  }
  try {
    check();
  } catch (const c10::Error& error) {
    split->tell(name, x, error.what_without_backtrace());
    throw;
  }
}

/// x, or its part where it has one for each of the heads of all processes:
/// (B, H, T, S).
torch::Tensor own_heads(
    const char* name,
    const char* what,
    const torch::Tensor& x,
    const HeadSplitPointer& split);

/// Checks that there is no function that changes scores, which would get those
/// of some heads only.
void check_no_function(
    const char* name,
    const ScoreFunction& function,
    const HeadSplitPointer& split);

/// `call` for the heads of this process.
ForwardOptions own_heads(
    const char* name,
    const ForwardOptions& call,
    const HeadSplitPointer& split);

/// Gives src/distributed what modules hide.
struct HeadSplitAccess {
  template <typename Module>
  static HeadSplitPointer& of(Module& module) {
    return module.split_;
  }
  template <typename Module>
  static const HeadSplitPointer& of(const Module& module) {
    return module.split_;
  }
  template <typename Norm>
  static bool is_of_keys(const Norm& norm) {
    return norm.of_keys_;
  }
  template <typename Norm>
  static void split_norm(
      Norm& norm,
      int64_t num_heads,
      bool of_keys,
      const HeadSplitPointer& split) {
    norm.num_heads = num_heads;
    norm.of_keys_ = of_keys;
    norm.split_ = split;
  }
};

} // namespace torch_attention::detail
