#pragma once

#include <torch/nn/module.h>
#include <torch/types.h>

#include <torch_attention/distributed/group.h>
#include <torch_attention/export.h>
#include <torch_attention/nn/options/attention.h>

#include <cstdint>
#include <vector>

/// Long sequences whose tokens are distributed over the processes of a group.
///
/// Sizes: `P` processes, `T` tokens of a whole sequence, `T/P` tokens per
/// process.
namespace torch_attention::distributed {

/// Which tokens of a sequence a process has.
enum class TokenLayout {
  /// T/P consecutive tokens, from `rank` * T/P on.
  kContiguous,
  /// Parts `rank` and 2P - 1 - `rank` of 2P equal parts. In causal attention
  /// early tokens see few others and late ones see many, so this gives all
  /// processes the same work.
  kBalanced,
};

/// Options for `ring_attention`, `all_to_all_attention` and
/// `sequence_parallel`.
///
/// Example:
/// ```
/// SequenceOptions().layout(TokenLayout::kBalanced)
/// ```
struct TORCH_ATTENTION_API SequenceOptions {
  /// which tokens each process has. Default: TokenLayout::kContiguous
  TORCH_ARG(TokenLayout, layout) = TokenLayout::kContiguous;

  /// exchange heads for tokens, so that each process computes some heads of the
  /// whole sequence (`all_to_all_attention`), instead of passing keys and
  /// values around (`ring_attention`). Only `sequence_parallel` reads it.
  /// Default: false
  TORCH_ARG(bool, all_to_all) = false;

  /// every process has all keys and values, or the whole context of
  /// `CrossAttention`, which suits a short context. By default they are
  /// distributed with the same layout as the queries. `sequence_parallel` reads
  /// it only for `CrossAttention`. Default: false
  TORCH_ARG(bool, whole_context) = false;
};

/// Returns the positions of this process's tokens in sequences of `num_tokens`
/// = T, int64 (T/P) on the CPU.
///
/// Throws c10::Error if T is not divisible by P, or by 2P for kBalanced.
///
/// Example:
/// ```
/// const auto positions = distributed::own_positions(T, group);
/// auto own = distributed::own_tokens(ids, /*dim=*/1, group);
/// ```
TORCH_ATTENTION_API torch::Tensor own_positions(
    int64_t num_tokens,
    const Group& group,
    TokenLayout layout = TokenLayout::kContiguous);

/// Returns this process's part of x along the token dimension `dim`:
/// (..., T, ...) -> (..., T/P, ...). Every process has the whole x; nothing is
/// sent. Throws c10::Error if T is not divisible as in `own_positions`.
TORCH_ATTENTION_API torch::Tensor own_tokens(
    const torch::Tensor& x,
    int64_t dim,
    const Group& group,
    TokenLayout layout = TokenLayout::kContiguous);

/// Gathers the parts x of all processes along `dim`:
/// (..., T/P, ...) -> (..., T, ...). Autograd does not record it. Throws
/// c10::Error if shapes or dtypes differ between processes.
TORCH_ATTENTION_API torch::Tensor joined_tokens(
    const torch::Tensor& x,
    int64_t dim,
    const Group& group,
    TokenLayout layout = TokenLayout::kContiguous);

/// Computes `functional::scaled_dot_product_attention` of a sequence whose
/// tokens are distributed over the processes (Liu et al. 2023, "Ring Attention
/// with Blockwise Transformers for Near-Infinite Context"). In step s each
/// process computes with the keys and values of the process s before it, while
/// the next ones arrive; partial results are merged exactly by their maxima and
/// sums. A process receives only the keys that its queries can see: the past
/// with `causal`, the keys in range with a window. The backward pass receives
/// keys and values again and sends their gradients back. No process ever holds
/// all of them.
///
/// query (B, H, T/P, D), key (B, G, S/P, D), value (B, G, S/P, E), H divisible
/// by G with `enable_gqa`, float32, float64, bfloat16 or float16 on the CPU ->
/// (B, H, T/P, E). S is T, or another number where positions do not matter:
/// without `causal`, windows, `chunk` and slopes. With `whole_context` keys are
/// (B, G, S, D) and values (B, G, S, E), and nothing is sent.
///
/// In `options`, `key_lengths` are lengths of whole sequences. A `mask` or
/// `bias` covers this process's queries and all S keys in their order; each of
/// its sizes may be 1. Some gradients cover this process's queries only and
/// need `sum_gradients`: those of sinks and slopes, of a bias shared by all
/// queries, and of whole keys and values. With `dropout` S has to be divisible
/// by 4P, or 8P for kBalanced, and T by half as much; with equal seeds the
/// processes drop the weights that a single process would drop.
///
/// Throws c10::Error if shapes, dtypes or options are not supported or differ
/// between processes; if `query_offsets`, `cu_seqlens` or `scores` are given;
/// if another process ends.
///
/// Example:
/// ```
/// const auto layout = TokenLayout::kBalanced;
/// auto context = distributed::ring_attention(
///     query, key, value, group,
///     functional::ScaledDotProductAttentionFuncOptions().causal(true),
///     SequenceOptions().layout(layout));
/// ```
TORCH_ATTENTION_API torch::Tensor ring_attention(
    const torch::Tensor& query,
    const torch::Tensor& key,
    const torch::Tensor& value,
    const Group& group,
    const functional::ScaledDotProductAttentionFuncOptions& options = {},
    const SequenceOptions& sequence = {});

/// Computes attention over the tokens of all processes by exchanging heads for
/// tokens (Jacobs et al. 2023, "DeepSpeed Ulysses: System Optimizations for
/// Enabling Training of Extreme Long Sequence Transformer Models"). Each
/// process gets all tokens of H/P heads, computes their attention as a single
/// process would, with any kernel and with dropout, and sends the results back.
/// H has to be divisible by P. Key heads are repeated if there are fewer of
/// them than processes. With `whole_context` each process slices its heads from
/// the whole keys and values.
///
/// Throws c10::Error if shapes, dtypes or options are not supported or differ
/// between processes; if `query_offsets`, `cu_seqlens` or `scores` are given;
/// if another process ends.
///
/// Example:
/// ```
/// auto context =
///     distributed::all_to_all_attention(query, key, value, group);
/// ```
TORCH_ATTENTION_API torch::Tensor all_to_all_attention(
    const torch::Tensor& query,
    const torch::Tensor& key,
    const torch::Tensor& value,
    const Group& group,
    const functional::ScaledDotProductAttentionFuncOptions& options = {},
    const SequenceOptions& sequence = {});

/// Makes every `MultiHeadAttention` and `CrossAttention` in `module`, including
/// `module` itself, attend to the tokens of all processes of `group`. `forward`
/// takes this process's tokens, x (B, T/P, d_in) -> (B, T/P, d_out), and its
/// tokens of a context (B, S/P, d_context), or the whole one with
/// `whole_context`. The other layers of a transformer work token by token and
/// need no change. Learned position embeddings have to be looked up by
/// `own_positions`.
///
/// Every process has all parameters, and gradients from its own tokens only:
/// `sum_gradients` adds them up. In a call, `positions` are the positions of
/// this process's tokens, by default those in the whole sequence; `key_lengths`
/// and `key_padding_mask` describe whole sequences; a mask or bias covers this
/// process's queries and all keys. `forward_with_weights` throws unless the
/// context is whole.
///
/// `decode` takes all new tokens in every process, returns the same result in
/// every process, and works on CPUs. Each process attends to its part of the
/// keys, and the rows are merged by their maxima and sums. Make caches after
/// this call. In caches of `MultiHeadAttention::make_cache` tokens are dealt
/// out to the processes in turn (`KVCacheOptions::num_parts`), and all are
/// stored, even with windows and chunks. Caches of `CrossAttention::make_cache`
/// hold this process's tokens of the context; their `lengths` are lengths of
/// whole contexts. Decode long prompts a few thousand tokens at a time.
///
/// A group of one process leaves modules as they are.
///
/// Returns the number of modules that were found.
///
/// Throws c10::Error, and changes nothing, if modules or options differ between
/// processes, if a module is parallel already, or if `module` contains
/// attention of another class, which would see this process's tokens only:
/// `LatentAttention`, `RelativeAttention`, `LongformerAttention`,
/// `CausalAttention`, `MultiHeadAttentionWrapper`, `SelfAttentionV1` and `V2`,
/// and `torch::nn::MultiheadAttention`, which LibTorch's transformers have in
/// each layer. Attention classes of your own are not detected.
///
/// Example:
/// ```
/// distributed::sequence_parallel(*model, group);
/// auto y = model->forward(distributed::own_tokens(x, 1, group));
/// y.sum().backward();
/// distributed::sum_gradients(model->parameters(), group);
/// ```
TORCH_ATTENTION_API int64_t sequence_parallel(
    torch::nn::Module& module,
    const Group& group,
    const SequenceOptions& sequence = {});

/// Sums the gradients of `parameters` over the processes, with one all-reduce
/// per dtype, and divides them by `divisor`: 1 if each process has some of the
/// tokens of a summed loss, P if each has its own batch of an averaged loss.
/// All processes need the same parameters in the same order. A missing gradient
/// counts as zeros if another process has one.
///
/// Throws c10::Error if shapes or dtypes differ between processes, or if
/// another process ends.
///
/// Example:
/// ```
/// loss.backward();
/// distributed::sum_gradients(model->parameters(), group, group->getSize());
/// optimizer.step();
/// ```
TORCH_ATTENTION_API void sum_gradients(
    const std::vector<torch::Tensor>& parameters,
    const Group& group,
    double divisor = 1);

} // namespace torch_attention::distributed
