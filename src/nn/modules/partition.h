#pragma once

#include <kernels/attention.h>
#include <kernels/linear.h>
#include <nn/modules/cache_view.h>
#include <nn/modules/projected.h>
#include <torch_attention/nn/functional/attention.h>
#include <torch_attention/nn/kv_cache.h>
#include <torch_attention/nn/options/forward.h>

#include <c10/util/FunctionRef.h>
#include <torch/types.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <tuple>

namespace torch_attention::detail {

/// A call of a module at its start.
struct PartitionCall {
  /// The module in messages.
  const char* name;
  torch::Tensor x;
  /// Undefined in self-attention.
  torch::Tensor context;
  /// Throws c10::Error if an argument is wrong.
  c10::function_ref<void()> check;
  /// Describes the arguments other than x and context that have to be equal in
  /// all processes.
  c10::function_ref<std::string()> text;
  /// True if the first message of the call is `longest`.
  bool exchanges_length = false;
  /// What values are projected from instead of x or the context, or undefined.
  torch::Tensor value_input = {};
};

/// Describes the arguments of `call` that have to be equal in all processes.
std::string describe(const PartitionCall& call);

/// The inputs of the projections to heads.
struct PartitionInput {
  torch::Tensor x;
  /// Undefined in self-attention.
  torch::Tensor context;
  /// What values are projected from instead of x or the context, or undefined.
  torch::Tensor value_input;
  /// Waits for the other processes, and throws c10::Error if their calls
  /// differ. Has to be called before attention and projections exchange data.
  /// `enter` itself waits if norms of the projections exchange data.
  std::function<void()> wait = [] {};
};

/// The heads and tokens that this process computes, and the operations that
/// need other processes. This class has all heads and tokens and no other
/// process. `src/distributed` derives classes for some of the heads (tensor
/// parallel) and some of the tokens (context parallel).
class Partition {
 public:
  Partition() = default;
  Partition(const Partition&) = delete;
  Partition& operator=(const Partition&) = delete;
  virtual ~Partition() = default;

  virtual bool is_whole() const {
    return true;
  }

  /// Number of processes that share the tokens of a sequence.
  virtual int64_t num_token_parts() const {
    return 1;
  }

  /// Number of processes that share the context of cross-attention.
  virtual int64_t num_context_parts() const {
    return 1;
  }

  /// Returns the range of this process's heads in the heads of all processes.
  virtual kernels::SharedHeads heads() const {
    return {};
  }

  /// Returns the positions of this process's T tokens, int64 (T); undefined:
  /// from 0 on.
  virtual torch::Tensor positions(int64_t T) const;

  /// Returns how many of the first `lengths`, int64 (B) or undefined, tokens of
  /// a context are among this process's S tokens, which begin with them.
  virtual torch::Tensor own_lengths(const torch::Tensor& lengths, int64_t S)
      const;

  /// Returns the columns of x (..., all keys or 1), or undefined, for this
  /// process's S keys.
  virtual torch::Tensor own_keys(const torch::Tensor& x, int64_t S) const;

  /// Returns the part of a mask or bias x for this process's heads. x is (T, S)
  /// or (B or 1, all heads or 1, T, S), or undefined. Its gradient is summed
  /// over the processes.
  virtual torch::Tensor own_heads(
      const char* name,
      const char* what,
      const torch::Tensor& x) const;

  /// Returns ALiBi's slopes of this process's `num_heads` heads.
  torch::Tensor own_slopes(int64_t num_heads) const;

  /// Throws c10::Error if `call` has an argument that needs all heads or
  /// tokens.
  virtual void check_call(const char* name, const ForwardOptions& call) const;

  /// Throws c10::Error unless this process has all tokens, which `what` needs.
  void check_has_all_tokens(const char* name, const char* what) const;

  /// Starts a call of `forward`. If `call.check` throws in one process, the
  /// others throw, too, instead of waiting. Returns the inputs, whose gradients
  /// are summed over the processes.
  virtual PartitionInput enter(const PartitionCall& call) const;

  /// Starts a call that uses a cache, like `enter`.
  virtual PartitionInput enter_cached(const PartitionCall& call) const;

  /// Returns a tensor that all heads share, whose gradient is summed over the
  /// processes.
  virtual torch::Tensor enter_weight(const torch::Tensor& weight) const;

  /// Returns a weight of key heads, whose gradient is summed over the processes
  /// that compute the same key heads.
  virtual torch::Tensor enter_keys(const torch::Tensor& weight) const;

  /// Returns the mean of x over the heads of all processes.
  virtual torch::Tensor mean_of_heads(const torch::Tensor& x) const;

  /// Returns the maximum of `own` over the processes that share the tokens.
  /// Messages are sent from `device`.
  virtual int64_t longest(int64_t own, torch::Device device) const;

  /// Returns the attention of this process's queries to the keys of all
  /// processes.
  virtual torch::Tensor attend(
      const Projected& projected,
      const functional::ScaledDotProductAttentionFuncOptions& options) const;

  /// Returns the attention of this process's queries to a context.
  virtual torch::Tensor attend_to_context(
      const Projected& projected,
      const functional::ScaledDotProductAttentionFuncOptions& options) const;

  /// Returns the attention output of this process's heads and their weights.
  std::tuple<torch::Tensor, torch::Tensor> attend_with_weights(
      const Projected& projected,
      const functional::ScaledDotProductAttentionFuncOptions& options) const;

  /// Returns the attention of queries (B, H, T, D), whose first positions are
  /// `first`, int64 (B) on the CPU, to the tokens of a cache of self-attention:
  /// (B, H, T, E) in the queries' dtype. Computed in the cache's dtype.
  virtual torch::Tensor attend_to_cache(
      const torch::Tensor& query,
      const CacheView& cache,
      const torch::Tensor& first,
      functional::ScaledDotProductAttentionFuncOptions options) const;

  /// Returns the attention of queries (B, H, T, D) to all rows of a context's
  /// cache that `options` do not hide: (B, H, T, E) in the queries' dtype.
  virtual torch::Tensor attend_to_context_cache(
      const torch::Tensor& query,
      const KVCache& cache,
      const functional::ScaledDotProductAttentionFuncOptions& options) const;

  /// Concatenates the outputs of all heads; `combined` (B, T, C) has this
  /// process's heads.
  virtual torch::Tensor gather(const torch::Tensor& combined) const;

  /// Projects the outputs of all heads: (B, T, d_out). `combined` (B, T, C) and
  /// the columns of `layer` are for this process's heads.
  virtual torch::Tensor project(
      const torch::Tensor& combined,
      const kernels::LinearLayer& layer,
      Kernel kernel) const;

  /// Returns the options of a cache for the tokens that this process stores.
  virtual KVCacheOptions cache_options(const KVCacheOptions& options) const;

  /// Returns the partition for calls, such as decoding with a cached context,
  /// that need no other process if this one has the whole context.
  virtual const Partition& of_context() const;

  /// Throws c10::Error unless the cache is for the tokens of this process.
  virtual void check_cache(const char* name, const KVCacheOptions& cache) const;
};

using PartitionPointer = std::shared_ptr<const Partition>;

/// Returns the partition of modules that are not distributed.
const PartitionPointer& whole_partition();

/// Returns `call` with the mask and bias of this process's heads.
ForwardOptions own_heads(
    const char* name,
    const ForwardOptions& call,
    const Partition& partition);

/// Throws c10::Error unless the cache is part `part` of `num_parts`.
void check_cache_part(
    const char* name,
    const KVCacheOptions& cache,
    int64_t num_parts,
    int64_t part);

/// Gives src/distributed access to private members of modules.
struct PartitionAccess {
  template <typename Module>
  static PartitionPointer& of(Module& module) {
    return module.partition_;
  }
  template <typename Module>
  static const PartitionPointer& of(const Module& module) {
    return module.partition_;
  }
  template <typename Norm>
  static bool is_norm_of_keys(const Norm& norm) {
    return norm.of_keys_;
  }
  template <typename Norm>
  static void set_norm(
      Norm& norm,
      int64_t num_heads,
      bool of_keys,
      const PartitionPointer& partition) {
    norm.num_heads = num_heads;
    norm.of_keys_ = of_keys;
    norm.partition_ = partition;
  }
};

} // namespace torch_attention::detail
