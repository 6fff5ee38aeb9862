#include <kernels/libtorch/chunks.h>

#include <kernels/libtorch/fused_call.h>

#include <ATen/ops/cat.h>

#include <vector>

namespace torch_attention::kernels {

namespace {

ScoreRule without_chunk(ScoreRule rule) {
  rule.chunk = std::nullopt;
  return rule;
}

/// Returns tokens [begin, end) of `a` as attention without chunks.
Attention tokens_between(const Attention& a, int64_t begin, int64_t end) {
  auto some = a;
  some.rule = without_chunk(a.rule);
  for (auto* x : {&some.query, &some.key, &some.value}) {
    *x = x->narrow(2, begin, end - begin);
  }
  return some;
}

/// Returns the output for `n` chunks of `size` tokens, which are all of
/// `whole`.
torch::Tensor by_whole_chunks(
    const Attention& whole,
    int64_t n,
    int64_t size,
    c10::function_ref<torch::Tensor(const Attention&)> attend) {
  const auto B = whole.query.size(0);
  const auto H = whole.query.size(1);
  // The chunks of all heads lie one after the other.
  const bool as_heads = H == whole.key.size(1) &&
      whole.query.stride(1) == n * size * whole.query.stride(2);
  auto apart = whole;
  for (auto* x : {&apart.query, &apart.key, &apart.value}) {
    // (B, H, T, D) -> (B, H, n, size, D)
    const auto split = x->unflatten(2, {n, size});
    *x = as_heads ? split.flatten(1, 2) : split.transpose(1, 2).flatten(0, 1);
  }
  const auto output = attend(apart);
  const auto split = as_heads ? output.unflatten(1, {H, n})
                              : output.unflatten(0, {B, n}).transpose(1, 2);
  return split.flatten(2, 3);
}

} // namespace

bool has_chunks_alone(const Attention& a) {
  const auto rest = without_chunk(a.rule);
  if (!a.rule.chunk || (rest.hides_keys() && !rest.is_only_causal())) {
    return false;
  }
  const auto n = a.query.size(2) / *a.rule.chunk;
  return n * a.query.size(0) <= kMostBlocks &&
      n * a.query.size(1) <= kMostBlocks;
}

torch::Tensor by_chunks(
    const Attention& a,
    c10::function_ref<torch::Tensor(const Attention&)> attend) {
  const auto T = a.query.size(2);
  const auto chunk = *a.rule.chunk;
  const auto n = T / chunk;
  const auto end = n * chunk;
  std::vector<torch::Tensor> outputs;
  if (n > 0) {
    outputs.push_back(
        by_whole_chunks(tokens_between(a, 0, end), n, chunk, attend));
  }
  if (end < T) {
    outputs.push_back(attend(tokens_between(a, end, T)));
  }
  return outputs.size() == 1 ? outputs[0] : at::cat(outputs, 2);
}

} // namespace torch_attention::kernels
