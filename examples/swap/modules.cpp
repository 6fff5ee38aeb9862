// Puts MultiHeadAttention into small GPT-like models that had another
// attention.

#include <torch/nn/modules/activation.h>
#include <torch/nn/modules/container/modulelist.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/embedding.h>
#include <torch/nn/modules/linear.h>
#include <torch/nn/modules/normalization.h>

#include <torch_attention/nn/modules/multi_head_attention.h>
#include <torch_attention/nn/utils/swap.h>

#include <cmath>
#include <exception>
#include <iostream>
#include <string>

namespace {

using torch::Tensor;
using torch_attention::MultiHeadAttention;
using torch_attention::MultiHeadAttentionOptions;

constexpr int64_t kWords = 50;
constexpr int64_t kWidth = 16;
constexpr int64_t kContext = 8;
constexpr int64_t kHeads = 4;
constexpr int64_t kBlocks = 2;

torch::nn::LayerNorm norm() {
  return torch::nn::LayerNorm(torch::nn::LayerNormOptions({kWidth}));
}

/// Takes the place of attention in the first model: the mean of the tokens so
/// far.
struct RunningMeanImpl : torch::nn::Module {
  Tensor forward(const Tensor& x) {
    const auto count = torch::arange(1, x.size(1) + 1, x.options());
    return x.cumsum(1) / count.unsqueeze(-1);
  }
};
TORCH_MODULE(RunningMean);

/// Computes x + layers(x).
struct ResidualImpl : torch::nn::Module {
  explicit ResidualImpl(const torch::nn::Sequential& layers_)
      : layers(register_module("layers", layers_)) {}

  Tensor forward(const Tensor& x) {
    return x + layers->forward(x);
  }

  torch::nn::Sequential layers;
};
TORCH_MODULE(Residual);

/// Returns a model that is put together from LibTorch's containers.
torch::nn::Sequential make_sequential_model() {
  torch::nn::Sequential model;
  model->push_back("embedding", torch::nn::Embedding(kWords, kWidth));
  for (int64_t i = 0; i < kBlocks; ++i) {
    torch::nn::Sequential layers({{"norm", norm()}, {"att", RunningMean()}});
    model->push_back("block" + std::to_string(i), Residual(layers));
  }
  model->push_back("head", torch::nn::Linear(kWidth, kWords));
  return model;
}

/// A block whose attention is a member of its class.
struct BlockImpl : torch::nn::Module {
  explicit BlockImpl(const MultiHeadAttentionOptions& options)
      : norm(register_module("norm", ::norm())),
        att(register_module("att", MultiHeadAttention(options))) {}

  Tensor forward(const Tensor& x) {
    return x + att->forward(norm->forward(x));
  }

  torch::nn::LayerNorm norm;
  MultiHeadAttention att;
};
TORCH_MODULE(Block);

/// A model made of such blocks.
struct ModelImpl : torch::nn::Module {
  explicit ModelImpl(const MultiHeadAttentionOptions& options)
      : embedding(
            register_module("embedding", torch::nn::Embedding(kWords, kWidth))),
        blocks(register_module("blocks", torch::nn::ModuleList())) {
    for (int64_t i = 0; i < kBlocks; ++i) {
      blocks->push_back(Block(options));
    }
  }

  Tensor forward(const Tensor& tokens) {
    auto x = embedding->forward(tokens);
    for (const auto& block : *blocks) {
      x = block->as<Block>()->forward(x);
    }
    return x;
  }

  torch::nn::Embedding embedding;
  torch::nn::ModuleList blocks;
};
TORCH_MODULE(Model);

MultiHeadAttentionOptions options() {
  return {kWidth, kWidth, kContext, kHeads};
}

/// Replaces modules by path: containers call their children, so a path is
/// enough.
void swap_by_path(const Tensor& tokens) {
  auto model = make_sequential_model();
  for (int64_t i = 0; i < kBlocks; ++i) {
    torch_attention::replace_module(
        *model,
        "block" + std::to_string(i) + ".layers.att",
        MultiHeadAttention(options()));
  }
  std::cout << model << "\noutput: " << model->forward(tokens).sizes() << '\n';
}

/// Replaces members: the class of the parent must be known.
void swap_members(const Tensor& tokens) {
  Model model(options());
  for (int64_t i = 0; i < kBlocks; ++i) {
    torch_attention::replace_module(
        *model,
        "blocks." + std::to_string(i) + ".att",
        &BlockImpl::att,
        MultiHeadAttention(options().num_kv_heads(kHeads / 2)));
  }
  std::cout << model << "\noutput: " << model->forward(tokens).sizes() << '\n';
}

/// Takes the weights of LibTorch's attention. It gets a mask with each call, so
/// that its weights do not tell whether the model is causal: `causal` says so.
void take_weights_of_libtorch() {
  torch::nn::MultiheadAttention old(
      torch::nn::MultiheadAttentionOptions(kWidth, kHeads));
  auto attention = torch_attention::from_multihead_attention(
      *old, kContext, /*causal=*/true);
  const auto x = torch::randn({2, kContext, kWidth});
  const auto tokens_first = x.transpose(0, 1); // (T, B, C)
  const auto mask = torch::full({kContext, kContext}, -INFINITY).triu(1);
  const auto expected = std::get<0>(old->forward(
      tokens_first,
      tokens_first,
      tokens_first,
      {},
      /*need_weights=*/false,
      mask));
  std::cout << attention << "\nlargest difference from LibTorch's: "
            << (attention->forward(x) - expected.transpose(0, 1))
                   .abs()
                   .max()
                   .item<double>()
            << '\n';
}

} // namespace

int main() {
  try {
    const auto tokens = torch::randint(kWords, {2, kContext}, torch::kInt64);
    swap_by_path(tokens);
    swap_members(tokens);
    take_weights_of_libtorch();
  } catch (const std::exception& error) {
    std::cerr << error.what() << '\n';
    return 1;
  }
  return 0;
}
