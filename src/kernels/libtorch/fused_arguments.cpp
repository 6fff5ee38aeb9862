#include <kernels/libtorch/fused_arguments.h>

#include <algorithm>

namespace torch_attention::kernels {

namespace {

c10::IValue optional(const torch::Tensor& x) {
  return x.defined() ? c10::IValue(x) : c10::IValue();
}

/// Sizes and starts of a call, as the operators name them.
struct Sizes {
  explicit Sizes(const FusedCall& call)
      : longest_query(call.query.size(1)), longest_key(call.key.size(1)) {
    if (call.packed) {
      query_starts = call.packed->queries;
      key_starts = call.packed->keys;
      keys_used = call.packed->keys_used;
      longest_query = call.packed->longest_query;
      longest_key = call.packed->longest_key;
    }
  }

  torch::Tensor query_starts;
  torch::Tensor key_starts;
  torch::Tensor keys_used;
  int64_t longest_query;
  int64_t longest_key;
};

/// The keys that flash shows on both sides of a query's own position. Numbers
/// beyond all keys are cut off, since the kernel's are small.
struct Window {
  explicit Window(const FusedCall& call) {
    const auto S = Sizes(call).longest_key;
    if (call.rule.window) {
      left = std::min(*call.rule.window - 1, S);
    }
    if (call.rule.causal && call.rule.window) {
      right = 0;
    } else if (!call.rule.causal && call.rule.window_after) {
      right = std::min(*call.rule.window_after, S);
    }
  }

  c10::IValue left;
  c10::IValue right;
};

/// The memory-efficient kernel's causal mask, aligned with the last key.
int64_t mask_type(const FusedCall& call) {
  constexpr int64_t kNone = 0;
  constexpr int64_t kFromLastKey = 2;
  return call.rule.causal ? kFromLastKey : kNone;
}

/// The memory-efficient kernel's window, which counts the query's own key.
c10::IValue efficient_window(const FusedCall& call) {
  return call.rule.window
      ? c10::IValue(std::min(*call.rule.window, Sizes(call).longest_key + 1))
      : c10::IValue();
}

/// Flash takes packed sequences as (N, H, D).
torch::Tensor for_flash(const FusedCall& call, const torch::Tensor& x) {
  return call.packed ? x.squeeze(0) : x;
}

} // namespace

NamedArguments flash_arguments(const FusedCall& call) {
  const Sizes sizes(call);
  const Window window(call);
  return {
      {{"query"}, for_flash(call, call.query)},
      {{"key"}, for_flash(call, call.key)},
      {{"value"}, for_flash(call, call.value)},
      {{"cum_seq_q"}, optional(sizes.query_starts)},
      {{"cum_seq_k"}, optional(sizes.key_starts)},
      {{"max_q"}, sizes.longest_query},
      {{"max_k"}, sizes.longest_key},
      {{"dropout_p"}, call.dropout},
      {{"is_causal"}, call.rule.causal},
      {{"return_debug_mask"}, false},
      {{"scale"}, *call.rule.scale},
      {{"window_size_left"}, window.left},
      {{"window_size_right"}, window.right},
      {{"seqused_k"}, optional(sizes.keys_used)}};
}

NamedArguments flash_backward_arguments(
    const FusedCall& call,
    const FusedResults& results,
    const torch::Tensor& grad_output) {
  const Sizes sizes(call);
  const Window window(call);
  return {
      {{"grad_out"}, for_flash(call, grad_output)},
      {{"query"}, for_flash(call, call.query)},
      {{"key"}, for_flash(call, call.key)},
      {{"value"}, for_flash(call, call.value)},
      {{"out"}, for_flash(call, results.output)},
      {{"logsumexp"}, results.logsumexp},
      {{"cum_seq_q"}, sizes.query_starts},
      {{"cum_seq_k"}, sizes.key_starts},
      {{"max_q"}, sizes.longest_query},
      {{"max_k"}, sizes.longest_key},
      {{"dropout_p"}, call.dropout},
      {{"is_causal"}, call.rule.causal},
      {{"rng_state", "philox_seed"}, results.seed},
      {{"unused", "philox_offset"}, results.offset},
      {{"scale"}, *call.rule.scale},
      {{"window_size_left"}, window.left},
      {{"window_size_right"}, window.right}};
}

NamedArguments efficient_arguments(const FusedCall& call, bool with_logsumexp) {
  const Sizes sizes(call);
  const auto longest = [&](int64_t count) {
    return call.packed ? c10::IValue(count) : c10::IValue();
  };
  return {
      {{"query"}, call.query},
      {{"key"}, call.key},
      {{"value"}, call.value},
      {{"bias"}, optional(call.added)},
      {{"cu_seqlens_q"}, optional(sizes.query_starts)},
      {{"cu_seqlens_k"}, optional(sizes.key_starts)},
      {{"max_seqlen_q"}, longest(sizes.longest_query)},
      {{"max_seqlen_k"}, longest(sizes.longest_key)},
      {{"dropout_p"}, call.dropout},
      {{"custom_mask_type"}, mask_type(call)},
      {{"compute_log_sumexp"}, with_logsumexp},
      {{"scale"}, *call.rule.scale},
      {{"seqlen_k"}, optional(sizes.keys_used)},
      {{"window_size"}, efficient_window(call)}};
}

NamedArguments efficient_backward_arguments(
    const FusedCall& call,
    const FusedResults& results,
    const torch::Tensor& grad_output) {
  const Sizes sizes(call);
  return {
      {{"grad_out_"}, grad_output},
      {{"query"}, call.query},
      {{"key"}, call.key},
      {{"value"}, call.value},
      {{"bias"}, optional(call.added)},
      {{"out"}, results.output},
      {{"cu_seqlens_q"}, optional(sizes.query_starts)},
      {{"cu_seqlens_k"}, optional(sizes.key_starts)},
      {{"max_seqlen_q"}, sizes.longest_query},
      {{"max_seqlen_k"}, sizes.longest_key},
      {{"logsumexp"}, results.logsumexp},
      {{"dropout_p"}, call.dropout},
      {{"philox_seed"}, results.seed},
      {{"philox_offset"}, results.offset},
      {{"custom_mask_type"}, mask_type(call)},
      {{"bias_requires_grad"}, false},
      {{"scale"}, *call.rule.scale},
      {{"window_size"}, efficient_window(call)}};
}

} // namespace torch_attention::kernels
