#pragma once

#include <torch/nn/modules/container/modulelist.h>
#include <torch/nn/modules/linear.h>
#include <torch/nn/modules/normalization.h>

#include <torch_attention/nn/modules/multi_head_attention.h>

/// The model of hand_written.h with our module as its attention.
namespace by_module {

using torch::Tensor;

inline torch_attention::MultiHeadAttentionOptions attention(
    int64_t width,
    int64_t heads) {
  return torch_attention::MultiHeadAttentionOptions(
             width, width, /*context_length=*/4096, heads)
      .causal(false)
      .qkv_bias(true)
      .register_mask(false);
}

struct BlockImpl : torch::nn::Module {
  BlockImpl(int64_t width, int64_t heads)
      : norm(register_module(
            "norm",
            torch::nn::LayerNorm(torch::nn::LayerNormOptions({width})))),
        att(register_module(
            "att",
            torch_attention::MultiHeadAttention(attention(width, heads)))) {}

  Tensor forward(const Tensor& x, const Tensor& padding) {
    return x +
        att->forward(
            norm->forward(x),
            torch_attention::ForwardOptions().key_padding_mask(padding));
  }

  torch::nn::LayerNorm norm;
  torch_attention::MultiHeadAttention att;
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

} // namespace by_module
