#include <nn/modules/multi_head_call.h>

#include <nn/checks.h>
#include <nn/modules/call.h>
#include <nn/modules/heads.h>
#include <nn/modules/token_split.h>
#include <torch_attention/nn/functional/attention.h>

#include <c10/util/Exception.h>

#include <cstdint>
#include <optional>

namespace torch_attention::detail {

namespace {

/// Returns ALiBi's slopes of the module's heads, which may be some of all.
torch::Tensor slopes_of(
    const MultiHeadAttentionImpl& module,
    const HeadSplitPointer& split) {
  const auto num_heads = module.options.num_heads();
  return split == nullptr ? functional::alibi_slopes(num_heads)
                          : functional::alibi_slopes(split->heads.all)
                                .narrow(0, split->heads.first, num_heads);
}

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

/// Returns the number of processes that share the tokens.
int64_t processes_of(const MultiHeadAttentionImpl& module) {
  const auto& split = TokenSplitAccess::of(module);
  return split == nullptr ? 1 : split->num_processes;
}

} // namespace

void check_input(const MultiHeadAttentionImpl& module, const torch::Tensor& x) {
  checks::check_input(
      kMultiHead, x, module.W_query->weight, module.options.d_in());
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

void check_input_of_call(
    const MultiHeadAttentionImpl& module,
    const torch::Tensor& x,
    const ForwardOptions& call) {
  check_input(module, x);
  const auto length = module.options.context_length();
  check_length(kMultiHead, x, call, length);
  check_has_blocks(module, x, call.visible_blocks());
  check_no_function(kMultiHead, call.scores(), HeadSplitAccess::of(module));
  const auto processes = processes_of(module);
  TORCH_CHECK(
      processes == 1 ||
          (!call.cu_seqlens().defined() && !call.scores() &&
           !call.visible_blocks().defined()),
      kMultiHead,
      ": expected no ",
      call.scores()                         ? "function `scores`"
          : call.visible_blocks().defined() ? "visible_blocks"
                                            : "cu_seqlens",
      ", where several processes share the tokens");
  TORCH_CHECK(
      processes == 1 || x.size(1) * processes <= length,
      kMultiHead,
      ": expected at most ",
      length,
      " tokens (context_length), but got ",
      x.size(1),
      " of each of ",
      processes,
      " processes");
}

void check_has_all_tokens(
    const char* what,
    const MultiHeadAttentionImpl& module) {
  TORCH_CHECK(
      TokenSplitAccess::of(module) == nullptr,
      kMultiHead,
      ": ",
      what,
      " needs all tokens, of which other processes have some "
      "(sequence_parallel)");
}

functional::ScaledDotProductAttentionFuncOptions head_options(
    const MultiHeadAttentionImpl& module,
    const HeadSplitPointer& split) {
  const auto& options = module.options;
  auto result = head_options(module);
  result.sinks(module.sinks);
  if (options.alibi()) {
    result.alibi_slopes(slopes_of(module, split));
  }
  return result;
}

torch::Tensor positions_of_call(
    const MultiHeadAttentionImpl& module,
    const torch::Tensor& x,
    const ForwardOptions& call) {
  const auto& options = module.options;
  if (!options.rotary() && !options.alibi() && !options.chunk() &&
      !options.temperature()) {
    return {};
  }
  const auto& split = TokenSplitAccess::of(module);
  TORCH_CHECK(
      !call.positions().defined() || (!options.alibi() && !options.chunk()) ||
          (split == nullptr && !call.cu_seqlens().defined()),
      kMultiHead,
      ": expected no positions beside alibi or chunk, where ",
      split != nullptr ? "several processes share the tokens"
                       : "sequences are packed (cu_seqlens)");
  if (split != nullptr) {
    if (!call.positions().defined()) {
      return split->positions(x.size(1));
    }
  }
  return positions_of(kMultiHead, call, x);
}

functional::ScaledDotProductAttentionFuncOptions call_options(
    const MultiHeadAttentionImpl& module,
    const torch::Tensor& x,
    const ForwardOptions& whole_call,
    const torch::Tensor& positions,
    const HeadSplitPointer& split) {
  auto options = head_options(module, split);
  const auto call = own_heads(kMultiHead, whole_call, split);
  if (is_empty(call)) {
    return options;
  }
  const auto [B, T, S] = sizes_of_call(kMultiHead, x, call);
  set_call(
      kMultiHead,
      call,
      {B, module.options.num_heads(), T, S * processes_of(module)},
      options,
      module.options.block_scope());
  if (TokenSplitAccess::of(module) != nullptr) {
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

} // namespace torch_attention::detail
