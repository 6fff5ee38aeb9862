#include <nn/modules/multi_head_call.h>

#include <check.h>
#include <kernels/elements.h>
#include <nn/checks.h>
#include <nn/functional/checked_attention.h>
#include <nn/modules/call.h>
#include <nn/modules/heads.h>
#include <nn/modules/partition.h>
#include <nn/modules/rotary_angles.h>
#include <nn/modules/visible_blocks.h>
#include <torch_attention/nn/functional/attention.h>

#include <c10/util/Exception.h>

#include <cstdint>
#include <optional>
#include <utility>
#include <vector>

namespace torch_attention::detail {

void check_input(const MultiHeadAttentionImpl& module, const torch::Tensor& x) {
  checks::check_input(
      kMultiHead, x, module.W_query->weight, module.options.d_in());
  if (!PartitionAccess::of(module)->is_whole()) {
    check_projection(
        kMultiHead,
        "W_query",
        module.W_query,
        module.options.num_heads(),
        module.head_dim);
  }
}

namespace {

/// Returns the ALiBi bias of tokens at `positions`, int64 (T) or (B, T): (H, T,
/// T) or (B, H, T, T).
torch::Tensor alibi_bias(
    const torch::Tensor& slopes,
    const torch::Tensor& positions,
    const torch::Tensor& x) {
  const auto dtype = kernels::compute_dtype(x.scalar_type());
  const auto at = positions.to(x.device());
  const auto distance = (at.unsqueeze(-1) - at.unsqueeze(-2)).abs();
  return slopes.to(x.device(), dtype).view({-1, 1, 1}).neg() *
      distance.unsqueeze(-3);
}

const Partition& partition_of(const MultiHeadAttentionImpl& module) {
  return *PartitionAccess::of(module);
}

/// Returns the options of functional attention that follow from the options and
/// parameters of the module.
functional::ScaledDotProductAttentionFuncOptions module_options(
    const MultiHeadAttentionImpl& module) {
  const auto& options = module.options;
  auto result = head_options(module);
  result.sinks(module.sinks);
  if (options.alibi()) {
    result.alibi_slopes(partition_of(module).own_slopes(options.num_heads()));
  }
  return result;
}

/// Returns half the number of rotated elements of a head.
int64_t rotated_pairs(const MultiHeadAttentionImpl& module) {
  return module.options.rotary()->dim().value_or(module.head_dim) / 2;
}

/// Checks tensors as attention does, before other processes wait for this one.
void check_for_others(
    const MultiHeadAttentionImpl& module,
    const torch::Tensor& x,
    const std::vector<int64_t>& scores,
    const functional::ScaledDotProductAttentionFuncOptions& options) {
  if (!partition_of(module).is_whole()) {
    functional::detail::check_score_tensors(options, x, scores);
  }
}

/// Checks that the cache has room for the new tokens.
void check_room(const CacheView& cache, const NewTokens& tokens) {
  const auto& has = cache.options();
  TORCH_CHECK(
      !has.values_in_keys(),
      "MultiHeadAttention: expected a cache of keys and values, but got "
      "one of values_in_keys");
  TORCH_ATTENTION_CHECK(
      tokens.most_after <= has.max_length().value_or(tokens.most_after),
      "MultiHeadAttention: expected at most {} tokens (max_length) in "
      "the cache, but got {} with the new ones; the cache is unchanged",
      has.max_length().value_or(0),
      tokens.most_after);
}

/// Checks that the cache does not drop tokens that the module attends to.
void check_reach(const MultiHeadAttentionImpl& module, const CacheView& cache) {
  const auto& has = cache.options();
  const auto window = module.options.window();
  TORCH_ATTENTION_CHECK(
      !has.window() || (window && *window <= *has.window()),
      "MultiHeadAttention: expected a cache that keeps all tokens or at "
      "least the window of {}, but got one of window = {}",
      window ? c10::str(*window) : "the module, which is all",
      has.window().value_or(0));
  const auto chunk = module.options.chunk();
  TORCH_ATTENTION_CHECK(
      !has.chunk() || (chunk && *has.chunk() % *chunk == 0),
      "MultiHeadAttention: expected a cache that keeps all tokens or "
      "chunks of a multiple of {}, but got one of chunk = {}",
      chunk ? c10::str(*chunk) : "the module's, which is all",
      has.chunk().value_or(0));
}

void check_has_blocks(
    const MultiHeadAttentionImpl& module,
    const torch::Tensor& x,
    const torch::Tensor& visible_blocks) {
  TORCH_CHECK(
      !module.options.needs_blocks() || visible_blocks.defined() ||
          x.size(1) <= 1,
      "MultiHeadAttention: expected visible_blocks (needs_blocks), which "
      "says which tokens are those of an image and see each other; for "
      "text alone give -1 for each token");
}

void check_arguments(
    const MultiHeadAttentionImpl& module,
    const torch::Tensor& x,
    const ForwardOptions& call) {
  check_input(module, x);
  const auto length = module.options.context_length();
  check_length(kMultiHead, x, call, length);
  check_has_blocks(module, x, call.visible_blocks());
  check_value_input(
      kMultiHead,
      call.value_input(),
      module.options.needs_value_input(),
      "input",
      x,
      module.W_value->weight);
  const auto& partition = partition_of(module);
  partition.check_call(kMultiHead, call);
  const auto parts = partition.num_token_parts();
  TORCH_ATTENTION_CHECK(
      parts == 1 || x.size(1) * parts <= length,
      "MultiHeadAttention: expected at most {} tokens (context_length), "
      "but got {} of each of {} processes",
      length,
      x.size(1),
      parts);
}

torch::Tensor token_positions(
    const MultiHeadAttentionImpl& module,
    const torch::Tensor& x,
    const ForwardOptions& call) {
  const auto& options = module.options;
  if (!options.rotary() && !options.alibi() && !options.chunk() &&
      !options.temperature()) {
    return {};
  }
  if (!call.positions().defined()) {
    return sequence_positions(module, x, call);
  }
  const bool has_all_tokens = partition_of(module).num_token_parts() == 1;
  TORCH_ATTENTION_CHECK(
      (!options.alibi() && !options.chunk()) ||
          (has_all_tokens && !call.cu_seqlens().defined()),
      "MultiHeadAttention: expected no positions beside alibi or chunk, "
      "where {}",
      has_all_tokens ? "sequences are packed (cu_seqlens)"
                     : "several processes share the tokens");
  return positions_of(kMultiHead, call, x);
}

functional::ScaledDotProductAttentionFuncOptions call_options(
    const MultiHeadAttentionImpl& module,
    const torch::Tensor& x,
    const ForwardOptions& whole_call,
    const torch::Tensor& positions) {
  const auto& partition = partition_of(module);
  auto options = module_options(module);
  auto call = own_heads(kMultiHead, whole_call, partition);
  // The projection reads it.
  call.value_input(torch::Tensor());
  if (is_empty(call)) {
    return options;
  }
  const auto [B, T, S] = call_sizes(kMultiHead, x, call);
  const std::vector<int64_t> scores = {
      B, module.options.num_heads(), T, S * partition.num_token_parts()};
  set_call(kMultiHead, call, scores, options, module.options.block_scope());
  check_for_others(module, x, scores, options);
  if (partition.num_token_parts() > 1) {
    TORCH_CHECK(
        !options.chunk() ||
            !positions_after_padding(call.key_padding_mask()).defined(),
        "MultiHeadAttention: expected no padding before the tokens of a "
        "sequence beside chunk, where several processes share the tokens");
    return options;
  }
  if (call.cu_seqlens().defined()) {
    return options;
  }
  if (positions.defined() && options.alibi_slopes().defined()) {
    const auto alibi = alibi_bias(options.alibi_slopes(), positions, x);
    options.bias(options.bias().defined() ? alibi + options.bias() : alibi);
    options.alibi_slopes(torch::Tensor());
  }
  set_chunks(x, call, positions, scores.size(), options);
  return options;
}

/// Checks blocks, bias and score function of a call of `decode`, and sets them
/// in the options, except the blocks, which need the rows of the new tokens.
void set_decode_call(
    const MultiHeadAttentionImpl& module,
    const torch::Tensor& x,
    const CacheView& cache,
    const DecodeOptions& call,
    CheckedDecode& checked) {
  const auto H = module.options.num_heads();
  const CallSizes sizes{x.size(0), x.size(1), checked.tokens.most_after};
  const std::vector<int64_t> scores = {sizes.B, H, sizes.T, sizes.S};
  auto& options = checked.options;
  if (call.visible_blocks().defined()) {
    check_visible_blocks(
        kMultiHead,
        call.visible_blocks(),
        module.options.block_scope(),
        scores,
        options);
  }
  auto own_call = call;
  own_call.bias(
      partition_of(module).own_heads(kMultiHead, "bias", call.bias()));
  set_decode_scores(kMultiHead, own_call, cache, sizes, H, options);
  check_for_others(module, x, scores, options);
}

} // namespace

torch::Tensor sequence_positions(
    const MultiHeadAttentionImpl& module,
    const torch::Tensor& x,
    const ForwardOptions& call) {
  const auto own = partition_of(module).positions(x.size(1));
  return own.defined()
      ? own
      : positions_of(
            kMultiHead, ForwardOptions().cu_seqlens(call.cu_seqlens()), x);
}

CheckedCall check_call(
    const MultiHeadAttentionImpl& module,
    const torch::Tensor& x,
    const ForwardOptions& call) {
  check_arguments(module, x, call);
  CheckedCall checked;
  checked.positions = token_positions(module, x, call);
  if (module.options.rotary()) {
    check_angles(kMultiHead, rotated_pairs(module), x, call);
  }
  checked.options = call_options(module, x, call, checked.positions);
  return checked;
}

CheckedDecode check_decode(
    const MultiHeadAttentionImpl& module,
    const torch::Tensor& x,
    const CacheView& cache,
    const DecodeOptions& call) {
  const auto& options = module.options;
  const auto& partition = partition_of(module);
  check_input(module, x);
  check_length(kMultiHead, x, {}, options.context_length());
  check_decodes(kMultiHead, module);
  TORCH_CHECK(
      !options.needs_value_input(),
      "MultiHeadAttention: expected needs_value_input = false for decode, "
      "which makes the values of the input");
  check_cache(kMultiHead, module, x, cache.options());
  partition.check_cache(kMultiHead, cache.options());
  check_reach(module, cache);
  partition.check_call(
      kMultiHead,
      ForwardOptions()
          .block_mask(call.block_mask())
          .scores(call.scores())
          .visible_blocks(call.visible_blocks()));
  check_has_blocks(module, x, call.visible_blocks());
  CheckedDecode checked;
  checked.tokens =
      new_tokens(kMultiHead, x, cache, call, options.context_length());
  check_room(cache, checked.tokens);
  if (options.rotary()) {
    check_angles(kMultiHead, rotated_pairs(module), x, call, checked.tokens);
  }
  if (options.rotary() && !call.rotary_cos().defined()) {
    check_rotates_alike(kMultiHead, *options.rotary(), checked.tokens, cache);
  }
  checked.options = module_options(module).kernel(options.kernel());
  set_decode_call(module, x, cache, call, checked);
  return checked;
}

functional::ScaledDotProductAttentionFuncOptions decode_options(
    const MultiHeadAttentionImpl& module,
    const torch::Tensor& x,
    const CacheView& cache,
    const DecodeOptions& call,
    const NewTokens& tokens,
    functional::ScaledDotProductAttentionFuncOptions checked) {
  set_decode_blocks(
      kMultiHead,
      call,
      cache,
      tokens,
      {x.size(0), x.size(1), x.size(1)},
      module.options.block_scope(),
      checked);
  return checked;
}

} // namespace torch_attention::detail
