#include <kernels/libtorch/chunks.h>

#include <kernels/libtorch/fused_call.h>

namespace torch_attention::kernels {

namespace {

/// Returns whether the chunks of all heads lie one after the other.
bool may_become_heads(const Attention& a) {
  const auto T = a.query.size(2);
  return a.query.size(1) == a.key.size(1) &&
      a.query.stride(1) == T * a.query.stride(2);
}

} // namespace

bool has_chunks_alone(const Attention& a) {
  const bool has_tensors = a.mask.defined() || a.bias.defined() ||
      a.alibi_slopes.defined() || a.sinks.defined() ||
      a.key_lengths.defined() || a.query_offsets.defined();
  if (!a.rule.chunk || a.rule.window || a.rule.window_after || has_tensors ||
      a.query.size(2) != a.key.size(2)) {
    return false;
  }
  const auto n = a.query.size(2) / *a.rule.chunk;
  return n * a.query.size(0) <= kMostBlocks &&
      n * a.query.size(1) <= kMostBlocks;
}

Attention tokens_between(const Attention& a, int64_t begin, int64_t end) {
  auto some = a;
  for (auto* x : {&some.query, &some.key, &some.value}) {
    *x = x->narrow(2, begin, end - begin);
  }
  return some;
}

Attention with_chunks_apart(const Attention& a) {
  const auto chunk = *a.rule.chunk;
  const auto n = a.query.size(2) / chunk;
  const bool as_heads = may_become_heads(a);
  auto apart = a;
  apart.rule.chunk = std::nullopt;
  for (auto* x : {&apart.query, &apart.key, &apart.value}) {
    // (B, H, T, D) -> (B, H, n, chunk, D)
    const auto split = x->unflatten(2, {n, chunk});
    *x = as_heads ? split.flatten(1, 2) : split.transpose(1, 2).flatten(0, 1);
  }
  return apart;
}

torch::Tensor joined_chunks(const Attention& a, const torch::Tensor& output) {
  const auto B = a.query.size(0);
  const auto H = a.query.size(1);
  const auto n = a.query.size(2) / *a.rule.chunk;
  const auto split = may_become_heads(a)
      ? output.unflatten(1, {H, n})
      : output.unflatten(0, {B, n}).transpose(1, 2);
  return split.flatten(2, 3);
}

} // namespace torch_attention::kernels
