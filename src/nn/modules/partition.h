#pragma once

#include <kernels/attention.h>
#include <kernels/linear.h>
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

/// A call of a module that begins.
struct PartitionCall {
  /// The module that messages name.
  const char* name;
  torch::Tensor x;
  /// Undefined in self-attention.
  torch::Tensor context;
  /// Throws c10::Error if the arguments are wrong.
  c10::function_ref<void()> check;
  /// Returns the arguments besides x and context that have to be the same in
  /// all processes.
  c10::function_ref<std::string()> text;
  /// True if the first message of the call is `longest`.
  bool exchanges_length = false;
};

/// Returns what has to be the same in all processes of `call`.
std::string describe(const PartitionCall& call);

/// The inputs of the projections to heads.
struct PartitionInput {
  torch::Tensor x;
  /// Undefined in self-attention.
  torch::Tensor context;
  /// Waits for the other processes; throws c10::Error if their calls differ.
  /// Call it before attention and projections join results of processes. Where
  /// norms of the projections do, `enter` has waited.
  std::function<void()> wait = [] {};
};

/// The heads and tokens of a module that this process holds, and the work that
/// needs those of other processes. This class is the whole: all heads, all
/// tokens, no other process. `src/distributed` derives parts of the heads
/// (tensor parallel) and parts of the tokens (context parallel).
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

  /// The heads here among the query heads of all processes.
  virtual kernels::SharedHeads heads() const {
    return {};
  }

  /// Returns the positions of the T tokens here, int64 (T); undefined: from 0
  /// on.
  virtual torch::Tensor positions(int64_t T) const;

  /// Returns how many of the first `lengths`, int64 (B) or undefined, tokens of
  /// a context are among the S tokens here. They are the first of these.
  virtual torch::Tensor own_lengths(const torch::Tensor& lengths, int64_t S)
      const;

  /// Returns the columns of x (..., all keys or 1), or undefined, of the S keys
  /// here.
  virtual torch::Tensor own_keys(const torch::Tensor& x, int64_t S) const;

  /// Returns the heads here of a mask or bias x, which is (T, S) or (B or 1,
  /// all heads or 1, T, S), or undefined. Its gradient is summed over the
  /// processes.
  virtual torch::Tensor own_heads(
      const char* name,
      const char* what,
      const torch::Tensor& x) const;

  /// Returns ALiBi's slopes of the `num_heads` heads here.
  torch::Tensor own_slopes(int64_t num_heads) const;

  /// Throws c10::Error if `call` asks for what needs all heads or tokens.
  virtual void check_call(const char* name, const ForwardOptions& call) const;

  /// Throws c10::Error unless all tokens are here. `what` needs them.
  void check_has_all_tokens(const char* name, const char* what) const;

  /// Begins a call of `forward`. If `call.check` throws in one process, the
  /// others throw, too, instead of waiting. Returns the inputs, whose gradients
  /// are summed over the processes.
  virtual PartitionInput enter(const PartitionCall& call) const;

  /// Begins a call that uses a cache, like `enter`.
  virtual PartitionInput enter_cached(const PartitionCall& call) const;

  /// Returns a tensor that all heads share, whose gradient is summed over the
  /// processes.
  virtual torch::Tensor enter_weight(const torch::Tensor& weight) const;

  /// Returns a weight of key heads, whose gradient is summed over the processes
  /// that have a copy of it.
  virtual torch::Tensor enter_keys(const torch::Tensor& weight) const;

  /// Returns the mean of x over the heads of all processes.
  virtual torch::Tensor mean_of_heads(const torch::Tensor& x) const;

  /// Returns the largest number of the processes that share the tokens.
  /// `device` is one that they can send from.
  virtual int64_t longest(int64_t own, torch::Device device) const;

  /// Returns the attention of the queries here to the keys of all processes.
  virtual torch::Tensor attend(
      const Projected& projected,
      const functional::ScaledDotProductAttentionFuncOptions& options) const;

  /// Returns the attention of the queries here to a context.
  virtual torch::Tensor attend_to_context(
      const Projected& projected,
      const functional::ScaledDotProductAttentionFuncOptions& options) const;

  /// Returns the context of the heads here and their weights.
  std::tuple<torch::Tensor, torch::Tensor> attend_with_weights(
      const Projected& projected,
      const functional::ScaledDotProductAttentionFuncOptions& options) const;

  /// Returns the attention of queries (B, H, T, D), whose first positions are
  /// `first`, int64 (B) on the CPU, to the tokens of a cache of self-attention:
  /// (B, H, T, E) of the queries' dtype. Computed in that of the cache.
  virtual torch::Tensor attend_to_cache(
      const torch::Tensor& query,
      const KVCache& cache,
      const torch::Tensor& first,
      functional::ScaledDotProductAttentionFuncOptions options) const;

  /// Returns the attention of queries (B, H, T, D) to all rows of a cache of a
  /// context, where `options` hide none: (B, H, T, E) of the queries' dtype.
  virtual torch::Tensor attend_to_context_cache(
      const torch::Tensor& query,
      const KVCache& cache,
      const functional::ScaledDotProductAttentionFuncOptions& options) const;

  /// Returns the outputs (B, T, C) of all heads, side by side.
  virtual torch::Tensor gather(const torch::Tensor& combined) const;

  /// Returns the projection of the outputs (B, T, C) of all heads: (B, T,
  /// d_out). `layer` has the columns for the heads here.
  virtual torch::Tensor project(
      const torch::Tensor& combined,
      const kernels::LinearLayer& layer,
      Kernel kernel) const;

  /// Returns the options of a cache for the tokens that this process keeps.
  virtual KVCacheOptions cache_options(const KVCacheOptions& options) const;

  /// The partition of a call that needs no other process if the whole context
  /// is here, such as decoding with a cached context.
  virtual const Partition& of_context() const;

  /// Throws c10::Error if the cache is not for the tokens of this process.
  virtual void check_cache(const char* name, const KVCache& cache) const;
};

using PartitionPointer = std::shared_ptr<const Partition>;

/// Returns the partition of modules that are not distributed.
const PartitionPointer& whole_partition();

/// Returns `call` with the mask and bias of the heads here.
ForwardOptions own_heads(
    const char* name,
    const ForwardOptions& call,
    const Partition& partition);

/// Throws c10::Error unless the cache holds part `part` of `num_parts`.
void check_cache_part(
    const char* name,
    const KVCache& cache,
    int64_t num_parts,
    int64_t part);

/// Gives src/distributed what modules hide.
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
