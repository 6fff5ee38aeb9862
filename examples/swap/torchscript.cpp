// Attention of a TorchScript model: its weights taken out by their path, and
// checked; and the model as it is, with our kernels in it.
//
//   swap_torchscript FILE
//
// writes the scripted model to FILE first: the model of someone else.

#include "compare.h"

#include <torch/script.h>

#include <torch_attention/jit/swap_attention.h>
#include <torch_attention/nn/modules/multi_head_attention.h>
#include <torch_attention/weights/load.h>

#include <exception>
#include <iostream>
#include <string>

namespace {

using swap_example::check_same;
using swap_example::compare_times;
using torch::Tensor;

constexpr int64_t kWidth = 256;
constexpr int64_t kHeads = 8;
constexpr int64_t kTokens = 384;

/// Registers a linear layer.
void add_linear(torch::jit::Module& module, const std::string& name) {
  torch::jit::Module linear("Linear");
  const auto weight = torch::randn({kWidth, kWidth}) / 16;
  linear.register_parameter("weight", weight, /*is_buffer=*/false);
  linear.register_parameter("bias", torch::randn(kWidth), false);
  linear.define(R"(
def forward(self, x):
    return torch.linear(x, self.weight, self.bias)
)");
  module.register_module(name, linear);
}

/// Writes what Python's `torch.jit.script(model).save(path)` would: two blocks
/// of attention with padding.
void write_model(const std::string& path) {
  torch::jit::Module model("Model");
  for (const auto* name : {"first", "second"}) {
    torch::jit::Module attention("Attention");
    for (const auto* part : {"q_proj", "k_proj", "v_proj", "out_proj"}) {
      add_linear(attention, part);
    }
    attention.define(R"(
def forward(self, x: Tensor, padding: Tensor) -> Tensor:
    B, T, C = x.size(0), x.size(1), x.size(2)
    q = self.q_proj.forward(x).view(B, T, 8, C // 8).transpose(1, 2)
    k = self.k_proj.forward(x).view(B, T, 8, C // 8).transpose(1, 2)
    v = self.v_proj.forward(x).view(B, T, 8, C // 8).transpose(1, 2)
    scores = torch.matmul(q, k.transpose(-2, -1)) / 32**0.5
    hidden = padding.unsqueeze(1).unsqueeze(2)
    scores = scores.masked_fill(hidden, -float('inf'))
    context = torch.matmul(torch.softmax(scores, -1), v)
    return self.out_proj.forward(context.transpose(1, 2).reshape(B, T, C))
)");
    model.register_module(name, attention);
  }
  model.define(R"(
def forward(self, x: Tensor, padding: Tensor) -> Tensor:
    x = x + self.first.forward(x, padding)
    return x + self.second.forward(x, padding)
)");
  model.save(path);
}

/// Makes one of our modules of the attention below a path of the file.
void take_out(const std::string& path, const Tensor& x, const Tensor& padding) {
  torch_attention::MultiHeadAttention attention(
      torch_attention::MultiHeadAttentionOptions(
          kWidth, kWidth, /*context_length=*/kTokens, kHeads)
          .causal(false)
          .qkv_bias(true)
          .register_mask(false));
  std::cout << torch_attention::load_weights(
      *attention, path, torch_attention::LoadOptions().prefix("second"));
  attention->eval();

  auto model = torch::jit::load(path);
  model.eval();
  auto theirs = model.attr("second").toModule();
  check_same(
      "MultiHeadAttention",
      attention->forward(
          x, torch_attention::ForwardOptions().key_padding_mask(padding)),
      theirs.forward({x, padding}).toTensor());
}

/// Swaps attention in the graph.
void swap_graph(
    const std::string& path,
    const Tensor& x,
    const Tensor& padding) {
  auto theirs = torch::jit::load(path);
  auto ours = torch::jit::load(path);
  theirs.eval();
  ours.eval();

  // The swap.
  const auto report = torch_attention::swap_attention(ours);
  std::cout << report;
  TORCH_CHECK(report.swapped.size() == 2 && report.left_alone.empty());

  const auto run = [&](torch::jit::Module& model) {
    return model.forward({x, padding}).toTensor();
  };
  check_same("swapped model", run(ours), run(theirs));
  // It is a model as before: saved, it needs our library where it is loaded.
  ours.save(path);
  auto again = torch::jit::load(path);
  check_same("saved and loaded", run(again), run(theirs));
  compare_times([&] { return run(theirs); }, [&] { return run(ours); });
}

} // namespace

int main(int argc, char** argv) {
  if (argc != 2) {
    std::cerr << "usage: swap_torchscript FILE\n";
    return 2;
  }
  try {
    const torch::NoGradGuard no_gradients;
    write_model(argv[1]);
    const auto x = torch::randn({4, kTokens, kWidth});
    auto padding = torch::zeros({4, kTokens}, torch::kBool);
    padding[1].slice(0, 200).fill_(true);
    padding[3].slice(0, 17).fill_(true);
    take_out(argv[1], x, padding);
    swap_graph(argv[1], x, padding);
  } catch (const std::exception& error) {
    std::cerr << error.what() << '\n';
    return 1;
  }
  return 0;
}
