#pragma once

#include <torch/arg.h>
#include <torch/nn/module.h>

#include <torch_attention/distributed/group.h>
#include <torch_attention/export.h>
#include <torch_attention/nn/modules/cross_attention.h>
#include <torch_attention/nn/modules/multi_head_attention.h>

#include <cstdint>

namespace torch_attention::distributed {

/// Options for `tensor_parallel`.
///
/// Example:
/// ```
/// TensorParallelOptions().compare(false)
/// ```
struct TORCH_ATTENTION_API TensorParallelOptions {
  /// compare modules, and in each call the shapes and dtypes of inputs, between
  /// processes. Costs about 1 kB sent to each other process, which overlaps
  /// with the computation. Without it, differences end in an error of the
  /// group's backend or in its timeout. Turn it off for groups with processes
  /// that do not run this library. Default: true
  TORCH_ARG(bool, compare) = true;
};

/// Splits the heads of every `MultiHeadAttention` and `CrossAttention` in
/// `module`, including `module` itself, over the processes of `group` (Shoeybi
/// et al. 2019, "Megatron-LM: Training Multi-Billion Parameter Language Models
/// Using Model Parallelism", section 3). Projections of queries, keys and
/// values are split by their outputs, `out_proj` by its inputs. The forward
/// pass sums the partial outputs with one all-reduce, the backward pass sums
/// the gradients of the input. So inputs, outputs and their gradients are the
/// same in all processes and equal to those of the whole module.
///
/// The modules keep their class; their parameters and the number of heads in
/// their options become this process's part. `decode` fills caches of these
/// heads, and `forward_with_weights` returns their weights. Masks and biases of
/// a call cover all heads. Parameters keep their values but change their
/// shapes, so make optimizers and references to parameters afterwards. The
/// backward pass of an output computed before fails. Dropout drops what the
/// whole module would drop, if the generators have the same seed in all
/// processes.
///
/// num_heads has to be divisible by the number of processes. If there are fewer
/// key heads than processes, neighbouring processes share a key head, and the
/// backward pass sums its gradients.
///
/// Returns the number of modules that were split.
///
/// Throws c10::Error, and changes nothing, if heads cannot be divided, if a
/// module is split already, if two layers share a weight, if `qk_norm` is a
/// layer norm over all heads, or if modules, their options or dtypes differ
/// between processes. `forward` throws in all processes, before it sends any
/// input, if inputs differ in shape or dtype or if an argument is wrong in one
/// process, and if another process ends.
///
/// Example:
/// ```
/// const auto group = distributed::group_from_environment();
/// distributed::tensor_parallel(*model, group);
/// ```
TORCH_ATTENTION_API int64_t tensor_parallel(
    torch::nn::Module& module,
    const Group& group,
    const TensorParallelOptions& options = {});

/// Makes a module and splits it. With the same seed its initial values are
/// those of the whole module.
///
/// Example:
/// ```
/// auto attention = distributed::tensor_parallel(
///     MultiHeadAttentionOptions(768, 768, 1024, 12), group);
/// ```
TORCH_ATTENTION_API MultiHeadAttention tensor_parallel(
    const MultiHeadAttentionOptions& module_options,
    const Group& group,
    const TensorParallelOptions& options = {});

TORCH_ATTENTION_API CrossAttention tensor_parallel(
    const CrossAttentionOptions& module_options,
    const Group& group,
    const TensorParallelOptions& options = {});

} // namespace torch_attention::distributed
