#include <torch_attention/distributed/sequence_parallel.h>

#include <check.h>
#include <distributed/communication.h>
#include <distributed/tokens.h>
#include <kernels/backward_node.h>
#include <nn/functional/attend.h>

#include <ATen/core/LegacyTypeDispatch.h>

#include <algorithm>

namespace torch_attention::distributed {

namespace {

constexpr const char* kAllToAll = "all_to_all_attention";

/// Exchanges x (P, ...): x[i] is sent to process i. So is its gradient.
torch::Tensor exchanged(const torch::Tensor& x, const Group& group);

struct ExchangeBackward {
  static constexpr const char* kName = "AllToAllBackward";
  Group group;

  kernels::variable_list operator()(
      const kernels::BackwardRequest& request) const {
    return {exchanged(request.grad_output, group)};
  }
};

torch::Tensor exchanged(const torch::Tensor& x, const Group& group) {
  torch::Tensor result;
  {
    const at::AutoDispatchBelowADInplaceOrView guard;
    result = all_to_all(group, x.contiguous(), "the exchange of heads");
  }
  if (kernels::is_recorded({&x})) {
    kernels::record_linear(ExchangeBackward{group}, result, x);
  }
  return result;
}

/// Exchanges all heads of some tokens for some heads of all tokens:
/// (B, H, T/P, D) -> (B, H/P, T, D).
torch::Tensor to_heads(
    const torch::Tensor& x,
    const Group& group,
    TokenLayout layout) {
  const int64_t P = group->getSize();
  const auto heads = x.size(1) / P;
  const auto by_owner =
      x.view({x.size(0), P, heads, x.size(2), x.size(3)}).movedim(1, 0);
  // (P, B, H/P, T/P, D), from the process that has the tokens.
  const auto of_tokens = exchanged(by_owner, group);
  return in_order(of_tokens.movedim(0, 2).flatten(2, 3), 2, group, layout);
}

/// Reverses `to_heads`: (B, H/P, T, D) -> (B, H, T/P, D).
torch::Tensor to_tokens(
    const torch::Tensor& x,
    const Group& group,
    TokenLayout layout) {
  const int64_t P = group->getSize();
  const auto tokens = by_process(x, 2, group, layout);
  const auto by_owner =
      tokens.reshape({x.size(0), x.size(1), P, x.size(2) / P, x.size(3)})
          .movedim(2, 0);
  return exchanged(by_owner, group).movedim(0, 1).flatten(1, 2);
}

/// Turns a mask or bias for this process's queries and all heads into one for
/// all queries and this process's heads. Gradients flow back.
torch::Tensor for_own_heads(
    const torch::Tensor& x,
    const torch::Tensor& query,
    const Group& group,
    TokenLayout layout) {
  if (!x.defined()) {
    return x;
  }
  auto scores = x;
  while (scores.dim() < 4) {
    scores = scores.unsqueeze(0);
  }
  const int64_t P = group->getSize();
  const bool is_of_all_heads = scores.size(1) == 1;
  if (scores.size(2) == query.size(2)) {
    return to_heads(
        is_of_all_heads ? scores.expand({-1, P, -1, -1}) : scores,
        group,
        layout);
  }
  // It is shared by all queries.
  const auto own = query.size(1) / P;
  return is_of_all_heads ? scores
                         : scores.narrow(1, group->getRank() * own, own);
}

torch::Tensor of_heads(
    const torch::Tensor& x,
    const kernels::SharedHeads& heads,
    int64_t num_heads) {
  return x.defined() ? x.narrow(0, heads.first, num_heads) : x;
}

void check_division(
    const torch::Tensor& query,
    const torch::Tensor& key,
    const Group& group,
    const functional::ScaledDotProductAttentionFuncOptions& options,
    const SequenceOptions& sequence) {
  const int64_t P = group->getSize();
  const auto H = query.size(1);
  const auto G = key.size(1);
  TORCH_ATTENTION_CHECK(
      H % P == 0 && (G % P == 0 || P % G == 0),
      "all_to_all_attention: expected heads divisible by the number of "
      "processes, and key heads too or the reverse, but got {} heads, {} "
      "key heads and {} processes",
      H,
      G,
      P);
  const auto [T, S] = whole_sizes(query, key, group, sequence);
  spans_of(kAllToAll, T, group->getRank(), P, sequence.layout());
  if (!sequence.whole_context()) {
    spans_of(kAllToAll, S, group->getRank(), P, sequence.layout());
  }
  check_scores(kAllToAll, options, query, S);
}

} // namespace

torch::Tensor all_to_all_attention(
    const torch::Tensor& query,
    const torch::Tensor& key,
    const torch::Tensor& value,
    const Group& group,
    const functional::ScaledDotProductAttentionFuncOptions& options,
    const SequenceOptions& sequence) {
  check_call(kAllToAll, query, key, value, group, options, sequence, [&] {
    check_division(query, key, group, options, sequence);
  });
  const int64_t P = group->getSize();
  const auto H = query.size(1);
  const auto G = key.size(1);
  const auto layout = sequence.layout();
  const kernels::SharedHeads heads{group->getRank() * (H / P), H};
  auto own = options;
  own.mask(for_own_heads(options.mask(), query, group, layout));
  own.bias(for_own_heads(options.bias(), query, group, layout));
  own.alibi_slopes(of_heads(options.alibi_slopes(), heads, H / P));
  own.sinks(of_heads(options.sinks(), heads, H / P));
  const auto of_keys = [&](const torch::Tensor& x) {
    if (sequence.whole_context()) {
      return x.narrow(1, group->getRank() * G / P, std::max<int64_t>(1, G / P));
    }
    return to_heads(
        G % P == 0 ? x : x.repeat_interleave(P / G, 1), group, layout);
  };
  const auto queries = to_heads(query, group, layout);
  const auto keys = of_keys(key);
  const auto values = of_keys(value);
  return to_tokens(
      functional::detail::attend(queries, keys, values, own, heads),
      group,
      layout);
}

} // namespace torch_attention::distributed
