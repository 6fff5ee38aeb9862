#include <kernels/libtorch/fused_rules.h>

#include <kernels/backward_node.h>
#include <kernels/heads.h>
#include <kernels/libtorch/equal_heads.h>
#include <kernels/libtorch/fused_attention.h>
#include <kernels/libtorch/packing.h>
#include <kernels/positions.h>
#include <kernels/query_blocks.h>
#include <kernels/sequences.h>

#include <ATen/Context.h>
#include <ATen/SDPBackend.h>
#include <ATen/ops/_fused_sdp_choice.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/constant_pad_nd.h>
#include <ATen/ops/where.h>
#include <ATen/ops/zeros.h>

namespace torch_attention::kernels {

namespace {

/// Flash, and the memory-efficient kernel in half precision, take head_dim that
/// is a multiple of this.
constexpr int64_t kMultiple = 8;

Operands operands_of(const Attention& a) {
  Operands x;
  x.query = a.query;
  x.key = a.key;
  x.value = a.value;
  if (a.sinks.defined()) {
    x.sinks = a.sinks.to(torch::kFloat).view({1, -1, 1});
  }
  return x;
}

FusedCall call_of(const Attention& a, FusedKernel kernel) {
  FusedCall call;
  call.kernel = kernel;
  call.rule = a.rule;
  call.rule.scale = a.rule.factor(a.query.size(-1));
  // Chunks become sequences.
  call.rule.chunk = std::nullopt;
  call.dropout = a.dropout;
  return call;
}

/// Returns the kernel that LibTorch would choose without a mask.
at::SDPBackend choice_of(const Attention& a) {
  // With as many heads as keys: not all kernels know groups, which are left to
  // us where they do not.
  const auto query = a.query.narrow(1, 0, a.key.size(1));
  return static_cast<at::SDPBackend>(at::_fused_sdp_choice(
      query,
      a.key,
      a.value,
      /*attn_mask=*/{},
      a.dropout,
      /*is_causal=*/false,
      a.rule.factor(query.size(-1))));
}

/// Returns whether every sequence has a key for each of its queries; for
/// `any`, at least one key if it has queries.
bool has_keys_for_queries(const Attention& a, bool any = false) {
  const auto fits = [any](int64_t T, int64_t S) {
    return any ? T == 0 || S > 0 : T <= S;
  };
  if (!is_packed(a)) {
    return fits(a.query.size(2), a.key.size(2));
  }
  const auto* queries = a.query_starts.const_data_ptr<int64_t>();
  const auto* keys = a.key_starts.const_data_ptr<int64_t>();
  for (int64_t i = 0; i + 1 < a.query_starts.size(0); ++i) {
    if (!fits(queries[i + 1] - queries[i], keys[i + 1] - keys[i])) {
      return false;
    }
  }
  return true;
}

/// Returns whether mask or bias is undefined or the same for all queries.
bool is_for_all_queries(const torch::Tensor& scores) {
  return !scores.defined() || scores.dim() < 2 || scores.size(-2) == 1;
}

/// Returns whether rules and tensors hide keys by position alone.
bool has_positions_only(const Attention& a) {
  return a.rule.is_linear() && !a.mask.defined() && !a.bias.defined() &&
      !a.alibi_slopes.defined();
}

bool has_no_lengths(const Attention& a) {
  return !a.key_lengths.defined() && !a.query_offsets.defined();
}

/// Returns whether flash computes `a`.
bool has_flash_rules(const Attention& a) {
  // Before the first key, flash forgets a window to the right that is as long
  // as the keys.
  const bool fits =
      a.rule.causal || !a.rule.window_after || has_keys_for_queries(a);
  if (!has_positions_only(a) || !fits) {
    return false;
  }
  if (is_packed(a)) {
    return has_no_lengths(a) && !a.rule.chunk && has_sequences_to_pack(a);
  }
  return has_no_lengths(a) ? !a.rule.chunk || has_chunks_to_pack(a)
                           : has_cache_to_pack(a);
}

/// Returns whether the memory-efficient kernel knows how `a` hides keys by
/// position. Before 2.15 LibTorch's causal mask is wrong before the first key,
/// and in the backward pass its window is for as many queries as keys.
bool has_efficient_window(const Attention& a) {
  if (a.rule.causal && !has_keys_for_queries(a)) {
    return false;
  }
  if (a.rule.window && is_recorded(tensors_of(a))) {
    const bool as_many = is_packed(a) ? a.query_starts.equal(a.key_starts)
                                      : a.query.size(2) == a.key.size(2);
    const bool in_blocks = a.alibi_slopes.defined() && has_query_blocks(a);
    return a.rule.causal && as_many && !in_blocks;
  }
  // A single query after a cache is given the keys of its window.
  const bool single = a.query.size(2) == 1 && a.ends_at_lengths;
  return a.rule.causal || (!a.rule.window_after && (!a.rule.window || single));
}

/// Returns whether what `a` adds to scores is the same for all queries, but for
/// numbers that change all scores of a query alike.
bool adds_for_all_queries(const Attention& a) {
  const bool slopes = a.alibi_slopes.defined();
  const bool by_key = a.rule.causal || a.query.size(-2) == 1;
  return is_for_all_queries(a.mask) && is_for_all_queries(a.bias) &&
      !is_recorded({&a.bias, &a.alibi_slopes}) &&
      (!a.bias.defined() || a.bias.scalar_type() == a.query.scalar_type()) &&
      (!slopes ||
       (by_key && !a.sinks.defined() &&
        a.query.scalar_type() == torch::kFloat));
}

/// Returns whether the memory-efficient kernel computes `a`.
bool has_efficient_rules(const Attention& a) {
  if (!a.rule.is_linear() || !has_efficient_window(a)) {
    return false;
  }
  if (is_packed(a)) {
    return has_positions_only(a) && has_no_lengths(a) && !a.rule.chunk &&
        has_sequences_to_pack(a) && has_keys_for_queries(a, /*any=*/true);
  }
  if (a.rule.chunk) {
    return has_positions_only(a) && has_no_lengths(a) && has_chunks_to_pack(a);
  }
  return !a.query_offsets.defined()
      ? adds_for_all_queries(a)
      : has_positions_only(a) && has_cache_to_pack(a);
}

/// Returns `x` with head_dim filled up with zeros.
torch::Tensor padded(const torch::Tensor& x) {
  const auto rest = x.size(-1) % kMultiple;
  return rest == 0 ? x : at::constant_pad_nd(x, {0, kMultiple - rest});
}

/// Returns a call for the tensors of `x` as they are, for kernels that need no
/// packing.
FusedAttention unpacked(const Operands& x, const FusedCall& call) {
  FusedAttention result;
  result.call = call;
  result.call.query = x.query.transpose(1, 2);
  result.call.key = x.key.transpose(1, 2);
  result.call.value = x.value.transpose(1, 2);
  result.call.added = x.scores;
  result.rows.sinks = x.sinks;
  result.rows.no_key = x.no_key;
  return result;
}

/// Returns the output (B, H, T, Dv) of `call`, packed as `a` asks for.
torch::Tensor run(
    const Attention& a,
    const Operands& x,
    const FusedCall& call) {
  const auto attention = [&] {
    if (is_packed(a)) {
      return pack_sequences(a, x, call);
    }
    if (a.rule.chunk) {
      return pack_chunks(a, x, call);
    }
    if (a.query_offsets.defined() ||
        (a.key_lengths.defined() && !x.scores.defined())) {
      return pack_cache(a, x, call);
    }
    return unpacked(x, call);
  }();
  const auto output = fused(attention);
  return output
      .reshape(
          {x.query.size(0), x.query.size(2), x.query.size(1), output.size(-1)})
      .transpose(1, 2);
}

torch::Tensor by_flash(const Attention& a) {
  auto x = operands_of(a);
  const auto D = x.value.size(-1);
  for (auto* heads : {&x.query, &x.key, &x.value}) {
    *heads = padded(*heads);
  }
  if (!is_packed(a) && has_no_lengths(a) && !a.rule.chunk) {
    x.no_key = queries_without_key(a, {});
  }
  return run(a, x, call_of(a, FusedKernel::kFlash)).slice(-1, 0, D);
}

/// Returns mask and lengths as bool that broadcasts to (B, H, 1, S). Undefined
/// if nothing is hidden.
torch::Tensor hidden_from_all(const Attention& a) {
  torch::Tensor hidden;
  if (a.mask.defined()) {
    hidden = scores_to_rank_4(a.mask, a.query);
  }
  if (a.key_lengths.defined()) {
    const auto keys = at::arange(a.key.size(2), a.key_lengths.options());
    const auto beyond = keys >= a.key_lengths.view({-1, 1, 1, 1});
    hidden = hidden.defined() ? hidden.bitwise_or(beyond) : beyond;
  }
  return hidden;
}

/// Returns what is added to the scores of all queries, (b, h, 1, S): ALiBi's
/// distances from the last key, and bias. Undefined if nothing is.
torch::Tensor added_for_all(const Attention& a) {
  torch::Tensor added;
  if (a.alibi_slopes.defined()) {
    const auto S = a.key.size(2);
    const auto ahead = at::arange(1 - S, 1, a.alibi_slopes.options());
    added = a.alibi_slopes.view({1, -1, 1, 1}) * ahead;
  }
  if (a.bias.defined()) {
    const auto bias = scores_to_rank_4(a.bias, a.query);
    added = added.defined() ? added + bias : bias;
  }
  return added;
}

/// Sets what is added to the scores, and the queries that see no key. The
/// kernel reads rows of keys that begin at multiples of 16.
void set_scores(const Attention& a, Operands& x) {
  constexpr int64_t kAligned = 16;
  auto added = added_for_all(a);
  auto hidden = hidden_from_all(a);
  const auto S = x.key.size(2);
  if (added.defined() || hidden.defined()) {
    if (a.bias.defined()) {
      const auto by_bias = added.eq(kHidden);
      hidden = hidden.defined() ? hidden.bitwise_or(by_bias) : by_bias;
    }
    if (!added.defined()) {
      added = at::zeros({1, 1, 1, S}, x.query.options());
    }
    if (hidden.defined()) {
      added = at::where(hidden, kHidden, added);
    }
    added = added.to(x.query.scalar_type()).expand({-1, -1, 1, S}).contiguous();
    const auto filled = (kAligned - S % kAligned) % kAligned;
    x.scores = at::constant_pad_nd(added, {0, filled}).slice(-1, 0, S);
  }
  x.no_key = queries_without_key(a, hidden);
}

/// Returns the output for queries whose keys need no further cut.
torch::Tensor by_efficient_block(const Attention& a) {
  auto x = operands_of(a);
  const auto call = call_of(a, FusedKernel::kEfficient);
  // Packed calls have sequences of their own.
  const bool dense =
      !is_packed(a) && !a.rule.chunk && !a.query_offsets.defined();
  if (dense) {
    set_scores(a, x);
  }
  const GroupsAs may_become{!is_packed(a), dense};
  return with_equal_heads(x, may_become, [&](const Operands& equal) {
    auto expanded = equal;
    if (equal.scores.defined()) {
      expanded.scores = equal.scores.expand(
          {equal.query.size(0),
           equal.query.size(1),
           equal.query.size(2),
           equal.key.size(2)});
    }
    return run(a, expanded, call);
  });
}

torch::Tensor by_efficient(const Attention& a) {
  // ALiBi counts from the last key here: from far away, float32 would round the
  // differences between near keys.
  return a.alibi_slopes.defined() && has_query_blocks(a)
      ? by_query_blocks(a, by_efficient_block)
      : by_efficient_block(a);
}

/// Returns whether LibTorch has fused kernels for tensors like `query`; ROCm's
/// mean other masks.
bool has_fused_kernels(const torch::Tensor& query) {
  return !at::globalContext().hasROCM() &&
      (has_fused_kernel(FusedKernel::kFlash, query) ||
       has_fused_kernel(FusedKernel::kEfficient, query));
}

/// Returns whether the memory-efficient kernel takes the tensors that LibTorch
/// would give to flash.
bool takes_instead(const Attention& a) {
  return at::globalContext().userEnabledMemEfficientSDP() &&
      a.query.size(-1) % kMultiple == 0 && a.value.size(-1) % kMultiple == 0 &&
      has_fused_kernel(FusedKernel::kEfficient, a.query);
}

} // namespace

bool takes_groups(const Attention& a) {
  if (!has_fused_kernel(FusedKernel::kFlash, a.query)) {
    return false;
  }
  const auto choice = choice_of(a);
  return choice == at::SDPBackend::flash_attention ||
      choice == at::SDPBackend::cudnn_attention;
}

bool sums_in_float(const Attention& a) {
  return has_fused_kernels(a.query) &&
      !at::globalContext().allowFP16BF16ReductionMathSDP() &&
      choice_of(a) != at::SDPBackend::math;
}

bool has_fused_rules(const Attention& a) {
  return has_fused_kernels(a.query) &&
      (has_flash_rules(a) || has_efficient_rules(a));
}

std::optional<torch::Tensor> by_fused_kernels(const Attention& a) {
  const bool fits =
      a.query.size(0) <= kMostBlocks && a.query.size(1) <= kMostBlocks;
  if (!fits || !has_fused_kernels(a.query)) {
    return std::nullopt;
  }
  const bool for_flash_rules = has_flash_rules(a);
  const bool for_efficient_rules = has_efficient_rules(a);
  if (!for_flash_rules && !for_efficient_rules) {
    return std::nullopt;
  }
  const auto choice = choice_of(a);
  const bool for_flash = choice == at::SDPBackend::flash_attention ||
      choice == at::SDPBackend::cudnn_attention;
  const bool flash = for_flash && for_flash_rules &&
      at::globalContext().userEnabledFlashSDP() &&
      a.query.size(-1) == a.value.size(-1) &&
      has_fused_kernel(FusedKernel::kFlash, a.query);
  if (flash) {
    return by_flash(a);
  }
  const bool efficient = choice == at::SDPBackend::efficient_attention ||
      (for_flash && takes_instead(a));
  if (efficient && for_efficient_rules) {
    return by_efficient(a);
  }
  return std::nullopt;
}

} // namespace torch_attention::kernels
