// Prints what the schemes of a layer send, in bytes of one process on average,
// forward and backward with the sum of the weights' gradients: what
// scripts/plan_processes.py computes.
//
//   traffic_of_schemes tokens size heads key_heads head_dim

#include <torch/torch.h>
#include <torch_attention/distributed/group.h>
#include <torch_attention/distributed/sequence_parallel.h>
#include <torch_attention/distributed/tensor_parallel.h>

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <vector>

namespace {

using namespace torch_attention;
namespace dist = torch_attention::distributed;

/// Returns the bytes sent since the last call, without comparisons.
int64_t sent_since(int64_t comparisons, const dist::Group& group) {
  const auto all =
      dist::traffic().bytes - comparisons * 1016 * (group->getSize() - 1);
  dist::reset_traffic();
  return all;
}

void print(
    const char* scheme,
    MultiHeadAttention module,
    const torch::Tensor& x,
    const dist::Group& group,
    bool sums_gradients) {
  dist::reset_traffic();
  const auto y = module->forward(x);
  const auto forward = sent_since(1, group);
  y.sum().backward();
  if (sums_gradients) {
    dist::sum_gradients(module->parameters(), group);
  }
  const auto backward = sent_since(sums_gradients ? 1 : 0, group);
  std::vector<torch::Tensor> sums = {
      torch::tensor({forward, backward}, torch::kDouble)};
  group->allreduce(sums)->wait();
  const auto means = sums[0] / group->getSize();
  if (group->getRank() == 0) {
    std::printf(
        "%s %f %f\n", scheme, means[0].item<double>(), means[1].item<double>());
  }
}

} // namespace

int main(int argc, char** argv) {
  if (argc != 6) {
    return 2;
  }
  const auto number = [&](int i) { return std::stoll(argv[i]); };
  const auto tokens = number(1);
  const auto size = number(2);
  const auto options = MultiHeadAttentionOptions(size, size, tokens, number(3))
                           .num_kv_heads(number(4))
                           .head_dim(number(5))
                           .out_bias(false);
  const auto group = dist::group_from_environment();
  const auto x = torch::randn({1, tokens, size}).requires_grad_();
  print("tensor", dist::tensor_parallel(options, group), x, group, false);
  for (const bool all_to_all : {false, true}) {
    MultiHeadAttention module(options);
    const auto sequence = dist::SequenceOptions()
                              .layout(dist::TokenLayout::kBalanced)
                              .all_to_all(all_to_all);
    dist::sequence_parallel(*module, group, sequence);
    const auto own = dist::own_tokens(x, 1, group, sequence.layout());
    print(all_to_all ? "all_to_all" : "ring", module, own, group, true);
  }
  return 0;
}
