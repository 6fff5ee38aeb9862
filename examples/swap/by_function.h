#pragma once

#include <torch/nn/modules/container/modulelist.h>
#include <torch/nn/modules/linear.h>
#include <torch/nn/modules/normalization.h>

#include <torch_attention/nn/functional/attention.h>

/// The model of hand_written.h with our function in its attention.
namespace by_function {

using torch::Tensor;

struct AttentionImpl : torch::nn::Module {
  AttentionImpl(int64_t width, int64_t heads_)
      : heads(heads_),
        q(register_module("q", torch::nn::Linear(width, width))),
        k(register_module("k", torch::nn::Linear(width, width))),
        v(register_module("v", torch::nn::Linear(width, width))),
        out(register_module("out", torch::nn::Linear(width, width))) {}

  /// x is (B, T, C), padding (B, T), true where there is no token.
  Tensor forward(const Tensor& x, const Tensor& padding) {
    const auto query = split_heads(q->forward(x)); // (B, H, T, D)
    const auto key = split_heads(k->forward(x));
    const auto value = split_heads(v->forward(x));
    namespace F = torch_attention::functional;
    const auto context = F::scaled_dot_product_attention(
        query,
        key,
        value,
        F::ScaledDotProductAttentionFuncOptions().mask(
            padding.unsqueeze(1).unsqueeze(1)));
    return out->forward(context.transpose(1, 2).flatten(2));
  }

  Tensor split_heads(const Tensor& x) const {
    return x.unflatten(-1, {heads, -1}).transpose(1, 2);
  }

  int64_t heads;
  torch::nn::Linear q, k, v, out;
};
TORCH_MODULE(Attention);

struct BlockImpl : torch::nn::Module {
  BlockImpl(int64_t width, int64_t heads)
      : norm(register_module(
            "norm",
            torch::nn::LayerNorm(torch::nn::LayerNormOptions({width})))),
        att(register_module("att", Attention(width, heads))) {}

  Tensor forward(const Tensor& x, const Tensor& padding) {
    return x + att->forward(norm->forward(x), padding);
  }

  torch::nn::LayerNorm norm;
  Attention att;
};
TORCH_MODULE(Block);

struct ModelImpl : torch::nn::Module {
  ModelImpl(int64_t width, int64_t heads, int64_t layers)
      : blocks(register_module("blocks", torch::nn::ModuleList())) {
    for (int64_t i = 0; i < layers; ++i) {
      blocks->push_back(Block(width, heads));
    }
  }

  Tensor forward(Tensor x, const Tensor& padding) {
    for (const auto& block : *blocks) {
      x = block->as<Block>()->forward(x, padding);
    }
    return x;
  }

  torch::nn::ModuleList blocks;
};
TORCH_MODULE(Model);

} // namespace by_function
