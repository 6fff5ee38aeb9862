#include <nn/modules/multi_head_call.h>

#include <nn/checks.h>
#include <nn/modules/call.h>
#include <nn/modules/heads.h>
#include <nn/modules/partition.h>
#include <torch_attention/nn/functional/attention.h>

#include <c10/util/Exception.h>

#include <cstdint>
#include <optional>

namespace torch_attention::detail {

void check_input(const MultiHeadAttentionImpl& module, const torch::Tensor& x) {
  checks::check_input(
      kMultiHead, x, module.W_query->weight, module.options.d_in());
}

namespace {

/// Returns what ALiBi adds to the scores of tokens at `positions`, int64 (T) or
/// (B, T): (H, T, T) or (B, H, T, T).
torch::Tensor alibi_bias(
    const torch::Tensor& slopes,
    const torch::Tensor& positions,
    const torch::Tensor& x) {
  const auto dtype =
      x.scalar_type() == torch::kDouble ? torch::kDouble : torch::kFloat;
  const auto at = positions.to(x.device());
  const auto distance = (at.unsqueeze(-1) - at.unsqueeze(-2)).abs();
  return slopes.to(x.device(), dtype).view({-1, 1, 1}).neg() *
      distance.unsqueeze(-3);
}

const Partition& partition_of(const MultiHeadAttentionImpl& module) {
  return *PartitionAccess::of(module);
}

/// Returns the options of functional attention that the module's own options
/// and parameters make.
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

/// Checks that the cache keeps all tokens that the module attends to.
void check_reach(const MultiHeadAttentionImpl& module, const KVCache& cache) {
  const auto& has = cache.options();
  const auto window = module.options.window();
  TORCH_CHECK(
      !has.window() || (window && *window <= *has.window()),
      kMultiHead,
      ": expected a cache that keeps all tokens or at least the window of ",
      window ? c10::str(*window) : "the module, which is all",
      ", but got one of window = ",
      has.window().value_or(0));
  const auto chunk = module.options.chunk();
  TORCH_CHECK(
      !has.chunk() || (chunk && *has.chunk() % *chunk == 0),
      kMultiHead,
      ": expected a cache that keeps all tokens or chunks of a multiple of ",
      chunk ? c10::str(*chunk) : "the module's, which is all",
      ", but got one of chunk = ",
      has.chunk().value_or(0));
}

void check_has_blocks(
    const MultiHeadAttentionImpl& module,
    const torch::Tensor& x,
    const torch::Tensor& visible_blocks) {
  TORCH_CHECK(
      !module.options.needs_blocks() || visible_blocks.defined() ||
          x.size(1) <= 1,
      kMultiHead,
      ": expected visible_blocks (needs_blocks), which says which tokens are "
      "those of an image and see each other; for text alone give -1 for each "
      "token");
}

void check_arguments(
    const MultiHeadAttentionImpl& module,
    const torch::Tensor& x,
    const ForwardOptions& call) {
  check_input(module, x);
  const auto length = module.options.context_length();
  check_length(kMultiHead, x, call, length);
  check_has_blocks(module, x, call.visible_blocks());
  const auto& partition = partition_of(module);
  partition.check_call(kMultiHead, call);
  const auto parts = partition.num_token_parts();
  TORCH_CHECK(
      parts == 1 || x.size(1) * parts <= length,
      kMultiHead,
      ": expected at most ",
      length,
      " tokens (context_length), but got ",
      x.size(1),
      " of each of ",
      parts,
      " processes");
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
  TORCH_CHECK(
      (!options.alibi() && !options.chunk()) ||
          (has_all_tokens && !call.cu_seqlens().defined()),
      kMultiHead,
      ": expected no positions beside alibi or chunk, where ",
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
  const auto call = own_heads(kMultiHead, whole_call, partition);
  if (is_empty(call)) {
    return options;
  }
  const auto [B, T, S] = call_sizes(kMultiHead, x, call);
  set_call(
      kMultiHead,
      call,
      {B, module.options.num_heads(), T, S * partition.num_token_parts()},
      options,
      module.options.block_scope());
  if (partition.num_token_parts() > 1) {
    TORCH_CHECK(
        !options.chunk() ||
            !positions_after_padding(call.key_padding_mask()).defined(),
        kMultiHead,
        ": expected no padding before the tokens of a sequence beside chunk, "
        "where several processes share the tokens");
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
  if (!options.chunk()) {
    return options;
  }
  const auto places = positions.defined()
      ? positions
      : positions_after_padding(call.key_padding_mask());
  if (places.defined()) {
    const auto hidden =
        hidden_by_chunk(places.to(x.device()), *options.chunk());
    options.mask(
        options.mask().defined() ? hidden.bitwise_or(options.mask()) : hidden);
    options.chunk(std::nullopt);
  }
  return options;
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
  checked.options = call_options(module, x, call, checked.positions);
  return checked;
}

NewTokens check_decode(
    const MultiHeadAttentionImpl& module,
    const torch::Tensor& x,
    const KVCache& cache,
    const DecodeOptions& call) {
  const auto& options = module.options;
  const auto& partition = partition_of(module);
  check_input(module, x);
  check_length(kMultiHead, x, {}, options.context_length());
  check_decodes(kMultiHead, module);
  check_cache(kMultiHead, module, x, cache);
  partition.check_cache(kMultiHead, cache);
  check_reach(module, cache);
  partition.check_call(
      kMultiHead,
      ForwardOptions()
          .scores(call.scores())
          .visible_blocks(call.visible_blocks()));
  check_has_blocks(module, x, call.visible_blocks());
  auto tokens =
      new_tokens(kMultiHead, x, cache, call, options.context_length());
  if (options.rotary() && !call.rotary_cos().defined()) {
    check_rotates_alike(kMultiHead, *options.rotary(), tokens, cache);
  }
  return tokens;
}

functional::ScaledDotProductAttentionFuncOptions decode_options(
    const MultiHeadAttentionImpl& module,
    const torch::Tensor& x,
    const KVCache& cache,
    const DecodeOptions& call,
    const NewTokens& tokens) {
  auto result = module_options(module).kernel(module.options.kernel());
  auto own_call = call;
  own_call.bias(
      partition_of(module).own_heads(kMultiHead, "bias", call.bias()));
  set_decode_scores(
      kMultiHead,
      own_call,
      cache,
      x.size(1),
      module.options.num_heads(),
      result);
  set_decode_blocks(
      kMultiHead,
      call,
      cache,
      tokens,
      {x.size(0), x.size(1), x.size(1)},
      module.options.block_scope(),
      result);
  return result;
}

} // namespace torch_attention::detail
