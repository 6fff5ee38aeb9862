// A program for one process and, with two lines more, one for many: the same
// source, compiled without and with them.

#include <torch/torch.h>
#include <torch_attention/nn/modules/multi_head_attention.h>

#ifdef TWO_LINES
#include <torch_attention/distributed/group.h>
#include <torch_attention/distributed/tensor_parallel.h>
#endif

#include <cstdio>
#include <string>

int main() {
  using namespace torch_attention;
  torch::manual_seed(1);
  auto attention = [] {
    return MultiHeadAttention(
        MultiHeadAttentionOptions(16, 16, 32, 8).num_kv_heads(4).dropout(0.1));
  };
  torch::nn::Sequential model(
      torch::nn::Linear(8, 16),
      attention(),
      torch::nn::LayerNorm(torch::nn::LayerNormOptions({16})),
      attention(),
      torch::nn::Linear(16, 8));
  model->to(torch::kDouble);
#ifdef TWO_LINES
  const auto group = distributed::group_from_environment();
  distributed::tensor_parallel(*model, group);
#endif
  torch::optim::AdamW optimizer(model->parameters());
  std::string losses;
  for (int step = 0; step < 5; ++step) {
    const auto x = torch::randn({2, 32, 8}, torch::kDouble);
    optimizer.zero_grad();
    const auto loss = (model->forward(x) - x).square().mean();
    loss.backward();
    optimizer.step();
    losses += c10::str("step ", step, " loss ", loss.item<double>(), "\n");
  }
  // At once, so that lines of several processes do not mix.
  std::fputs(losses.c_str(), stdout);
  return 0;
}
