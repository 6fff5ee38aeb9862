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
  /// compare modules, and in each call shapes and dtypes of inputs, between
  /// processes: about 1 kB to each of the others, on its way while attention is
  /// computed. Without it processes that differ fail in the words of the
  /// group's backend, or wait for its timeout. Not for groups with processes
  /// that do not run this library. Default: true
  TORCH_ARG(bool, compare) = true;
};

/// Leaves each process of `group` its part of the heads of every
/// `MultiHeadAttention` and `CrossAttention` in `module`, itself included
/// (Shoeybi et al. 2019, "Megatron-LM: Training Multi-Billion Parameter
/// Language Models Using Model Parallelism", section 3): projections of
/// queries, keys and values are split by their outputs, `out_proj` by its
/// inputs. `forward` sums the parts, one all-reduce of the output, and backward
/// those of the input's gradient, so that inputs, outputs and their gradients
/// are the same in all processes, and those of the whole module.
///
/// The modules stay what they are, with their parts as parameters and the
/// number of their own heads in the options; `decode` fills caches of their own
/// heads, and `forward_with_weights` returns the weights of these. Masks and
/// biases of a call are for all heads. All that was learned stays; optimizers
/// and references to parameters are to be made afterwards. Dropout drops what
/// the whole module would drop, if generators have the same seed in all
/// processes.
///
/// num_heads is to be divisible by the number of processes. Where there are
/// fewer key heads than processes, neighbours have the same ones, and
/// `backward` sums their gradients.
///
/// Returns the number of modules that were split.
///
/// Throws c10::Error, and changes nothing, if heads cannot be divided, if a
/// module was split before, if `qk_norm` is a layer norm of all heads, and if
/// modules, their options or dtypes differ between processes. `forward` throws
/// if inputs differ in shape or dtype, before it sends any, or if another
/// process ends.
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

/// Makes a module and splits it, with the initial values that the whole one has
/// under the same seed.
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
