#pragma once

#include <torch/nn/module.h>
#include <torch/types.h>

#include <torch_attention/distributed/group.h>
#include <torch_attention/export.h>
#include <torch_attention/nn/options/attention.h>

#include <cstdint>
#include <vector>

/// Long sequences, of which each process of a group has some of the tokens.
///
/// Sizes: `P` processes, `T` tokens of a whole sequence, `T/P` of each process.
namespace torch_attention::distributed {

/// The tokens of a sequence that a process has.
enum class TokenLayout {
  /// T/P in a row: the process `rank` those from rank * T/P on.
  kContiguous,
  /// Two halves, of 2P parts the one with the number `rank` and the one that is
  /// as far from the end. In causal attention early tokens see few others and
  /// late ones many: so all processes have the same work.
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

  /// exchange heads for tokens, and compute some heads of the whole sequence
  /// (`all_to_all_attention`), rather than send keys around
  /// (`ring_attention`). Read by `sequence_parallel`. Default: false
  TORCH_ARG(bool, all_to_all) = false;

  /// keys and values, and the context of `CrossAttention`, are whole in all
  /// processes, as a short one that each has anyway; by default they are split
  /// as the queries are, by the same layout. `sequence_parallel` reads it for
  /// `CrossAttention` alone. Default: false
  TORCH_ARG(bool, whole_context) = false;
};

/// Returns the positions of this process's tokens, int64 (T/P) on the CPU, of
/// sequences of `num_tokens` = T.
///
/// Throws c10::Error if T cannot be divided: by P, or by 2P for kBalanced.
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

/// Returns this process's part of x, which all have, along the dimension of
/// tokens `dim`: (..., T, ...) -> (..., T/P, ...). Sends nothing.
TORCH_ATTENTION_API torch::Tensor own_tokens(
    const torch::Tensor& x,
    int64_t dim,
    const Group& group,
    TokenLayout layout = TokenLayout::kContiguous);

/// Returns the whole of which each process has its part x: (..., T/P, ...) ->
/// (..., T, ...). Autograd does not record it.
TORCH_ATTENTION_API torch::Tensor joined_tokens(
    const torch::Tensor& x,
    int64_t dim,
    const Group& group,
    TokenLayout layout = TokenLayout::kContiguous);

/// `functional::scaled_dot_product_attention` of a sequence of which each
/// process has some tokens (Liu et al. 2023, "Ring Attention with Blockwise
/// Transformers for Near-Infinite Context"). In step s each process computes
/// with the keys and values of the process s before it, while those of the next
/// step arrive; the parts are joined exactly by their maxima and sums. Only
/// what a process's queries can see is sent to it: of causal attention the
/// past, of a window what is in it. Backward asks for keys and values again and
/// sends their gradients back. No process ever has all of them.
///
/// query (B, H, T/P, D), key (B, G, S/P, D), value (B, G, S/P, E), H divisible
/// by G with `enable_gqa`, float32, float64, bfloat16 or float16 on the CPU ->
/// (B, H, T/P, E). S is T, or another number where positions do not matter:
/// without `causal`, windows, `chunk` and slopes. With `whole_context` keys are
/// (B, G, S, D) and values (B, G, S, E), and nothing is sent.
///
/// In `options`, `key_lengths` are of whole sequences, and a `mask` or `bias`
/// is for the own queries and all S keys in their order, each size or 1; the
/// gradients of sinks and slopes, of a bias that is one for all queries, and of
/// whole keys and values, are those of the own queries, which `sum_gradients`
/// adds up. With `dropout` S is to be divisible by 4P, or 8P for kBalanced, and
/// T by half as much; processes of the same seed drop what one process drops.
///
/// Throws c10::Error if shapes, dtypes or options differ between processes or
/// do not fit; for `query_offsets`, `cu_seqlens` and `scores`; if another
/// process ends.
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

/// Attention to the tokens of all processes by exchanging heads for tokens
/// (Jacobs et al. 2023, "DeepSpeed
/// Ulysses: System Optimizations for Enabling Training of Extreme Long Sequence
/// Transformer Models"): each process gets all tokens of H/P heads, computes
/// their attention as one process does, by any kernel and with dropout, and
/// sends the results back. H is to be divisible by P; where there are fewer key
/// heads than processes, they are repeated. Each takes its heads of whole keys
/// and values.
///
/// Throws c10::Error if shapes, dtypes or options differ between processes or
/// do not fit, for `query_offsets`, `cu_seqlens` and `scores`, and if another
/// process ends.
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

/// Lets every `MultiHeadAttention` and `CrossAttention` in `module`, itself
/// included, attend over the tokens of all processes of `group`: `forward`
/// takes the own ones, x (B, T/P, d_in) -> (B, T/P, d_out), and of a context
/// its own ones (B, S/P, d_context), or the whole with `whole_context`.
/// Everything else that a transformer does to tokens one by one needs no other
/// processes, but for learned embeddings of positions, which `own_positions`
/// selects.
///
/// All processes have all parameters, and each the gradients of its own tokens:
/// `sum_gradients` adds them up. In a call `positions` are those of the own
/// tokens, by default their places in the whole, `key_lengths` and
/// `key_padding_mask` of whole sequences, and a mask or bias is for the own
/// queries and all keys. `forward_with_weights` is refused, but for a whole
/// context.
///
/// `decode` takes all new tokens in all processes, and returns the same in all,
/// on CPUs. Each process attends to the keys that it has, and rows are joined
/// by their maxima and sums. Caches of `MultiHeadAttention::make_cache`, made
/// after this call, have the tokens alternately (`KVCacheOptions::num_parts`),
/// and keep all, also of windows and chunks. Those of
/// `CrossAttention::make_cache` have the own tokens of the context, of which
/// `lengths` are those of the whole. Long prompts are best decoded some
/// thousand tokens at a time.
///
/// Returns the number of modules.
///
/// Throws c10::Error, and changes nothing, if modules or options differ between
/// processes, if a module was split before, and if `module` has attention of
/// another class, which would see the own tokens only: `LatentAttention`,
/// `CausalAttention`, `MultiHeadAttentionWrapper`, `SelfAttentionV1` and `V2`,
/// and `torch::nn::MultiheadAttention`, which LibTorch's transformers have in
/// each layer. Classes of your own are not known to it.
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

/// Sums the gradients of `parameters` over the processes, those of one dtype in
/// one operation, and divides them by `divisor`: 1 where processes have
/// different tokens of one sum, P where they have different batches of a mean.
/// All processes need the same parameters in the same order; those without a
/// gradient count as zeros where another process has one.
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
