#include <distributed/key_parts.h>

#include <distributed/communication.h>
#include <distributed/ring_blocks.h>
#include <nn/functional/checked_attention.h>

#include <c10/util/Exception.h>

#include <optional>

namespace torch_attention::distributed {

torch::Tensor attention_of_key_parts(
    const torch::Tensor& query,
    const torch::Tensor& key,
    const torch::Tensor& value,
    const Group& group,
    const functional::ScaledDotProductAttentionFuncOptions& options) {
  const torch::NoGradGuard no_grad;
  auto of_parts = options;
  of_parts.rule(options.rule().without_positions()).alibi_slopes({});
  const auto a =
      functional::detail::checked_attention(query, key, value, of_parts);
  TORCH_CHECK(
      kernels::is_tiled(a),
      "decode: expected, where several processes share the keys, plain tensors "
      "of float32, float64, bfloat16 or float16");
  RingCall call;
  call.rule = a.rule;
  call.sinks = a.sinks;
  call.key_lengths = a.key_lengths;
  call.mask = options.mask();
  call.bias = options.bias();
  call.queries = {{0, query.size(2)}};
  const auto E = value.size(3);
  auto sums = no_keys(query, E);
  add_keys(call, query, key, value, {0, key.size(2)}, sums);
  // In one message: output, maximum and sum of each row.
  const auto own = torch::cat(
      {sums.output, sums.maximum.unsqueeze(-1), sums.sum.unsqueeze(-1)}, -1);
  const auto parts = all_gather(group, own, "the joining of parts of keys");
  auto whole = joined(
      {parts.narrow(-1, 0, E), parts.select(-1, E), parts.select(-1, E + 1)});
  add_sinks(call, whole);
  return whole.output.to(query.scalar_type());
}

} // namespace torch_attention::distributed
