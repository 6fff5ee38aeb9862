#include <kernels/attention.h>

#include <kernels/backward_node.h>
#include <kernels/choice.h>
#include <kernels/heads.h>
#include <kernels/libtorch/chunks.h>
#include <kernels/libtorch/equal_heads.h>
#include <kernels/libtorch/fused_rules.h>
#include <kernels/libtorch/positions_as_features.h>
#include <kernels/plain.h>
#include <kernels/positions.h>
#include <kernels/sequences.h>

#include <ATen/autocast_mode.h>
#include <ATen/ops/scaled_dot_product_attention.h>

#include <algorithm>
#include <optional>

namespace torch_attention::kernels {

namespace {

/// Returns the dtype in which LibTorch would compute.
torch::ScalarType dtype_of_libtorch(const Attention& a) {
  const auto device = a.query.device().type();
  const auto dtype = a.query.scalar_type();
  return at::autocast::is_autocast_available(device) &&
          dtype != torch::kDouble && at::autocast::is_autocast_enabled(device)
      ? at::autocast::get_autocast_dtype(device)
      : dtype;
}

/// Returns whether the biases, ALiBi included, have more bits than the scores.
/// LibTorch would round them to the scores' dtype, in which a distance of 1100
/// may be off by 4.
bool rounds_what_is_added(const Attention& a) {
  const auto dtype = a.query.scalar_type();
  const bool half = dtype == torch::kHalf || dtype == torch::kBFloat16;
  return half &&
      (a.alibi_slopes.defined() ||
       (a.bias.defined() && a.bias.scalar_type() != dtype));
}

/// Computes what LibTorch has no half-precision kernel for, since its kernels
/// round the biases: few queries by the reference, whose scores are fewer than
/// the keys' numbers; ALiBi under causal as features of queries and keys; else
/// in float32, rounded at the end.
torch::Tensor with_exact_biases(const Attention& attention) {
  const auto G = attention.key.dim() < 3 ? 1 : attention.key.size(-3);
  const auto H = attention.query.dim() < 3 ? 1 : attention.query.size(-3);
  const auto queries_of_key = attention.query.size(-2) * (H / G);
  if (queries_of_key <= attention.query.size(-1) && attention.dropout == 0) {
    return std::get<0>(reference(attention));
  }
  if (may_have_positions_as_features(attention)) {
    const auto changed = with_positions_as_features(attention);
    if (sums_in_float(changed)) {
      return libtorch(changed).slice(-1, 0, attention.value.size(-1));
    }
  }
  const auto dtype = attention.query.scalar_type();
  auto a = attention;
  for (auto* x : {&a.query, &a.key, &a.value}) {
    *x = x->to(torch::kFloat);
  }
  return libtorch(a).to(dtype);
}

bool has_tangents(const Attention& a) {
  const auto tensors = {&a.query, &a.key, &a.value, &a.bias, &a.alibi_slopes};
  return std::any_of(
      tensors.begin(), tensors.end(), [](const torch::Tensor* x) {
        return x->defined() && has_tangent(*x);
      });
}

/// Returns `attention` with (B, H, T, D), (B, G, S, D) and (b, h, t, s).
Attention rank_4(const Attention& attention) {
  auto a = attention;
  for (auto* x : {&a.query, &a.key, &a.value}) {
    *x = to_rank_4(*x);
  }
  for (auto* x : {&a.mask, &a.bias}) {
    if (x->defined()) {
      *x = scores_to_rank_4(*x, attention.query);
    }
  }
  return a;
}

/// Returns `given`, copied unless its rows begin where the kernels of devices
/// load vectors from: some refuse others, some fault.
torch::Tensor aligned(const torch::Tensor& given) {
  constexpr int64_t kBytes = 16;
  const auto size = static_cast<int64_t>(given.element_size());
  auto x = given;
  bool is_aligned =
      x.stride(-1) == 1 && x.storage_offset() * size % kBytes == 0;
  // From the last one, which gives others of size 1 their stride.
  for (auto d = x.dim() - 2; d >= 0; --d) {
    if (x.stride(d) * size % kBytes == 0) {
      continue;
    }
    if (x.size(d) == 1) {
      // Kernels look at the stride of a single head, too.
      x = x.squeeze(d).unsqueeze(d);
    } else {
      is_aligned = false;
    }
  }
  return is_aligned ? x : x.clone(torch::MemoryFormat::Contiguous);
}

/// Leaves out the keys before `first`, which no query sees.
Attention without_keys_before(const Attention& attention, int64_t first) {
  auto a = attention;
  const auto S = a.key.size(2) - first;
  a.key = a.key.narrow(2, first, S);
  a.value = a.value.narrow(2, first, S);
  for (auto* x : {&a.mask, &a.bias}) {
    if (x->defined() && x->size(3) > 1) {
      *x = x->narrow(3, first, S);
    }
  }
  if (a.key_lengths.defined()) {
    a.key_lengths = a.key_lengths.clamp_min(first) - first;
  }
  return a;
}

/// Leaves out keys that no query sees, and rules that hide nothing then: a
/// single query at the end sees all keys that remain.
Attention simplified(const Attention& attention) {
  auto a = attention;
  const bool single = a.query.size(2) == 1;
  if (a.query_offsets.defined()) {
    if (single && a.ends_at_lengths) {
      a.rule.causal = false;
      a.rule.window_after = std::nullopt;
    }
    return a;
  }
  const auto T = a.query.size(2);
  const auto S = a.key.size(2);
  if (!a.rule.hides_keys() || T > S || (a.rule.chunk && !single)) {
    return a;
  }
  const auto first = visible_keys(a.rule, S - T, T, S).first;
  if (first > 0 && first < S) {
    a = without_keys_before(a, first);
  }
  if (single) {
    a.rule = a.rule.without_positions();
  }
  return a;
}

/// LibTorch's `attn_mask`, and the rows that it cannot express.
struct ScoreMask {
  /// Undefined, bool (true attends) or additive; broadcasts to (B, H, T, S)
  torch::Tensor mask;
  /// bool that broadcasts to (B, H, T, 1): true where all keys are hidden,
  /// which the mask then shows, since LibTorch's kernels may give NaN.
  /// Undefined if there is no such query.
  torch::Tensor no_key;
};

ScoreMask score_mask(const Attention& a) {
  const auto T = a.query.size(2);
  const auto S = a.key.size(2);
  const auto device = a.query.device();
  torch::Tensor hidden = a.mask;
  const auto by_position = hidden_by_position(a, 4, T, S, device);
  if (by_position.defined()) {
    hidden = hidden.defined() ? hidden.bitwise_or(by_position) : by_position;
  }
  auto bias = added_by_position(a, 4, T, S, device);
  if (a.bias.defined()) {
    bias = bias.defined() ? bias + a.bias : a.bias;
  }
  ScoreMask result;
  const bool guarded = may_hide_all_keys(a, T, S);
  if (!bias.defined()) {
    if (hidden.defined()) {
      result.mask = hidden.bitwise_not();
    }
    if (hidden.defined() && guarded) {
      result.no_key = hidden.all(-1, /*keepdim=*/true);
      result.mask = result.mask.bitwise_or(result.no_key);
    }
    return result;
  }
  result.mask = bias.to(a.query.scalar_type());
  if (hidden.defined()) {
    result.mask = torch::where(hidden, kHidden, result.mask);
  }
  if (guarded) {
    result.no_key = result.mask.eq(kHidden).all(-1, /*keepdim=*/true);
    result.mask = result.mask.masked_fill(result.no_key, 0);
  }
  return result;
}

/// Returns the mask as LibTorch wants it.
std::optional<torch::Tensor> as_rank_4(const torch::Tensor& mask) {
  if (!mask.defined()) {
    return std::nullopt;
  }
  auto result = mask;
  while (result.dim() < 4) {
    result = result.unsqueeze(0);
  }
  return result;
}

/// Returns attention by LibTorch's choice of kernels, with a mask for what
/// `is_causal` does not say: causal queries that are all tokens.
torch::Tensor by_libtorch(const Attention& a, bool is_causal) {
  const auto scores = is_causal ? ScoreMask() : score_mask(a);
  const auto attend = [&](const Operands& x) {
    return at::scaled_dot_product_attention(
        x.query,
        x.key,
        x.value,
        as_rank_4(x.scores),
        a.dropout,
        is_causal,
        a.rule.scale,
        /*enable_gqa=*/x.query.size(1) != x.key.size(1));
  };
  Operands x;
  x.query = a.query;
  x.key = a.key;
  x.value = a.value;
  x.scores = as_rank_4(scores.mask).value_or(torch::Tensor());
  // LibTorch fills rows up, but does not look where the first one begins.
  if (x.scores.defined() &&
      (x.scores.storage_offset() != 0 || x.scores.stride(3) != 1)) {
    x.scores = x.scores.clone(torch::MemoryFormat::Contiguous);
  }
  const bool has_groups = x.query.size(1) != x.key.size(1);
  const auto output = has_groups && !x.scores.defined() && takes_groups(a)
      ? attend(x)
      : with_equal_heads(x, GroupsAs(), attend);
  return scores.no_key.defined() ? output.masked_fill(scores.no_key, 0)
                                 : output;
}

/// Returns the output for a rule that is at most `causal`, of all tokens.
torch::Tensor of_all_tokens(const Attention& a) {
  return by_libtorch(a, a.rule.causal);
}

/// Returns whether `a` has as many queries as keys, and only a rule for its
/// scores.
bool has_all_tokens(const Attention& a) {
  const auto tensors = tensors_of(a);
  return a.query.size(2) == a.key.size(2) &&
      std::none_of(
             tensors.begin() + kBias,
             tensors.end(),
             [](const torch::Tensor* x) { return x->defined(); });
}

/// Returns whether matrix products of queries and many keys are faster than
/// LibTorch's kernel for float32, in which one block of threads reads all keys
/// of a head. Not with lengths, since they read what is beyond them, too, where
/// a cache may hold NaN.
bool has_few_queries(const Attention& a) {
  constexpr int64_t kFewQueries = 16;
  constexpr int64_t kManyKeys = 1024;
  const auto queries_of_key =
      a.query.size(2) * (a.query.size(1) / a.key.size(1));
  return !a.query.is_cpu() && a.query.scalar_type() == torch::kFloat &&
      queries_of_key <= kFewQueries && a.key.size(2) >= kManyKeys &&
      !a.key_lengths.defined() && a.dropout == 0 && !is_recorded(tensors_of(a));
}

torch::Tensor by_best_kernel(const Attention& attention) {
  const auto a = simplified(attention);
  if (has_all_tokens(a)) {
    if (a.rule.is_only_causal() || !a.rule.hides_keys()) {
      return of_all_tokens(a);
    }
    if (has_chunks_alone(a)) {
      return by_chunks(a, of_all_tokens);
    }
  }
  if (has_few_queries(a)) {
    return std::get<0>(reference(a));
  }
  // A query after cached keys: cuDNN, which LibTorch may choose, would make a
  // plan for each number of keys.
  if (const auto output = by_fused_kernels(a)) {
    return *output;
  }
  return a.sinks.defined() ? std::get<0>(reference(a))
                           : by_libtorch(a, /*is_causal=*/false);
}

} // namespace

bool is_libtorch(const Attention& a) {
  // LibTorch's kernels take masks, but not scores that change by their value,
  // nor forward derivatives; sinks only where we add them to its sums.
  return a.rule.is_linear() && !has_tangents(a) &&
      (!a.sinks.defined() || has_fused_rules(rank_4(a)));
}

torch::Tensor libtorch(const Attention& attention) {
  // Not all of LibTorch's kernels are known to autocast.
  const auto dtype = dtype_of_libtorch(attention);
  const c10::impl::ExcludeDispatchKeyGuard no_autocast(
      c10::autocast_dispatch_keyset);
  auto a = attention;
  for (auto* x : {&a.query, &a.key, &a.value}) {
    *x = x->to(dtype);
  }
  if (!is_packed(a) && rounds_what_is_added(a)) {
    return with_exact_biases(a);
  }
  // LibTorch scales after it hides keys by -inf, which a factor <= 0 would
  // turn.
  if (a.rule.scale && !(*a.rule.scale > 0)) {
    a.query = a.query * *a.rule.scale;
    a.rule.scale = 1.0;
  }
  auto heads = rank_4(a);
  if (!heads.query.is_cpu()) {
    for (auto* x : {&heads.query, &heads.key, &heads.value}) {
      *x = aligned(*x);
    }
  }
  if (!is_packed(heads)) {
    return from_rank_4(by_best_kernel(heads), a.query);
  }
  if (const auto output = by_fused_kernels(heads)) {
    return *output;
  }
  return by_sequences(heads, [](const Attention& one) {
    return compute(choose(one, Kernel::kFused), one);
  });
}

} // namespace torch_attention::kernels
