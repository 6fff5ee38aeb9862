#include "gpt2.h"

#include <torch/nn/modules/activation.h>
#include <torch/utils.h>

#include <torch_attention/nn/functional/linear.h>

namespace gpt {

namespace F = torch_attention::functional;
using torch::Tensor;
using torch_attention::DecodeOptions;
using torch_attention::KVCache;
using torch_attention::MultiHeadAttention;

Gpt2Config Gpt2Config::of_size(const std::string& name) {
  Gpt2Config config;
  if (name == "355M") {
    config.emb_dim = 1024;
    config.n_heads = 16;
    config.n_layers = 24;
  } else if (name == "774M") {
    config.emb_dim = 1280;
    config.n_heads = 20;
    config.n_layers = 36;
  } else if (name == "1558M") {
    config.emb_dim = 1600;
    config.n_heads = 25;
    config.n_layers = 48;
  } else {
    TORCH_CHECK(
        name == "124M",
        "Expected the size 124M, 355M, 774M or 1558M but got ",
        name);
  }
  return config;
}

LayerNormImpl::LayerNormImpl(int64_t emb_dim, double eps)
    : scale(register_parameter("scale", torch::ones(emb_dim))),
      shift(register_parameter("shift", torch::zeros(emb_dim))),
      eps_(eps) {}

Tensor LayerNormImpl::forward(const Tensor& x) {
  return torch::layer_norm(x, {x.size(-1)}, scale, shift, eps_);
}

FeedForwardImpl::FeedForwardImpl(const Gpt2Config& config)
    : layers(register_module("layers", torch::nn::Sequential())) {
  const auto hidden =
      config.hidden_dim > 0 ? config.hidden_dim : 4 * config.emb_dim;
  // One after the other: C++ may evaluate arguments in any order, and each
  // layer draws its weights.
  layers->push_back(torch::nn::Linear(config.emb_dim, hidden));
  layers->push_back(
      torch::nn::GELU(torch::nn::GELUOptions().approximate("tanh")));
  layers->push_back(torch::nn::Linear(hidden, config.emb_dim));
}

Tensor FeedForwardImpl::forward(const Tensor& x) {
  const auto& up = *layers[0]->as<torch::nn::Linear>();
  const auto& down = *layers[2]->as<torch::nn::Linear>();
  const auto hidden = torch::gelu(F::linear(x, up.weight, up.bias), "tanh");
  return F::linear(hidden, down.weight, down.bias);
}

// Members are made in the order of their declaration, which is Python's.
TransformerBlockImpl::TransformerBlockImpl(const Gpt2Config& config)
    : att(register_module(
          "att",
          MultiHeadAttention(
              config.emb_dim,
              config.emb_dim,
              config.context_length,
              config.drop_rate,
              config.n_heads,
              config.qkv_bias))),
      ff(register_module("ff", FeedForward(config))),
      norm1(
          register_module("norm1", LayerNorm(config.emb_dim, config.norm_eps))),
      norm2(
          register_module("norm2", LayerNorm(config.emb_dim, config.norm_eps))),
      drop_shortcut(register_module(
          "drop_shortcut",
          torch::nn::Dropout(config.drop_rate))) {}

Tensor TransformerBlockImpl::forward(const Tensor& x) {
  const auto attended = att->forward(norm1->forward(x));
  return add_feed_forward(x + drop_shortcut->forward(attended));
}

Tensor TransformerBlockImpl::decode(
    const Tensor& x,
    KVCache& cache,
    const DecodeOptions& call) {
  return add_feed_forward(x + att->decode(norm1->forward(x), cache, call));
}

Tensor TransformerBlockImpl::add_feed_forward(const Tensor& x) {
  return x + drop_shortcut->forward(ff->forward(norm2->forward(x)));
}

Gpt2Impl::Gpt2Impl(const Gpt2Config& config_)
    : config(config_),
      tok_emb(register_module(
          "tok_emb",
          torch::nn::Embedding(config.vocab_size, config.emb_dim))),
      pos_emb(register_module(
          "pos_emb",
          torch::nn::Embedding(config.context_length, config.emb_dim))),
      drop_emb(
          register_module("drop_emb", torch::nn::Dropout(config.drop_rate))),
      trf_blocks(register_module("trf_blocks", torch::nn::ModuleList())),
      final_norm(nullptr) {
  for (int64_t i = 0; i < config.n_layers; ++i) {
    trf_blocks->push_back(TransformerBlock(config));
  }
  final_norm =
      register_module("final_norm", LayerNorm(config.emb_dim, config.norm_eps));
  if (!config.tied) {
    out_head = register_module(
        "out_head",
        torch::nn::Linear(
            torch::nn::LinearOptions(config.emb_dim, config.vocab_size)
                .bias(false)));
  }
}

Tensor Gpt2Impl::forward(const Tensor& ids) {
  TORCH_CHECK(
      ids.dim() == 2 && ids.size(1) <= config.context_length,
      "Gpt2: expected ids (B, T) with T <= ",
      config.context_length,
      " but got ",
      ids.sizes());
  const auto positions = torch::arange(ids.size(1), ids.options());
  auto x =
      drop_emb->forward(tok_emb->forward(ids) + pos_emb->forward(positions));
  for (const auto& block : *trf_blocks) {
    x = block->as<TransformerBlock>()->forward(x);
  }
  return head(x);
}

Tensor Gpt2Impl::decode(
    const Tensor& ids,
    Caches& caches,
    const DecodeOptions& call) {
  const torch::NoGradGuard no_gradients;
  // A token's position is the number of its sequence's tokens before it, those
  // on the left that are padding not counted.
  auto first = caches.at(0).lengths();
  if (call.new_lengths().defined()) {
    first = first + call.new_lengths().cpu() - ids.size(1);
  }
  const auto positions =
      (first.unsqueeze(1) + torch::arange(ids.size(1))).clamp_min(0);
  TORCH_CHECK(
      positions.max().item<int64_t>() < config.context_length,
      "Gpt2: expected at most ",
      config.context_length,
      " tokens");
  auto x = tok_emb->forward(ids) + pos_emb->forward(positions.to(ids.device()));
  for (size_t i = 0; i < caches.size(); ++i) {
    x = trf_blocks[i]->as<TransformerBlock>()->decode(x, caches[i], call);
  }
  return head(x.select(1, -1));
}

Tensor Gpt2Impl::head(const Tensor& x) {
  const auto normed = final_norm->forward(x);
  return F::linear(normed, config.tied ? tok_emb->weight : out_head->weight);
}

Caches Gpt2Impl::make_caches(int64_t batch_size) const {
  Caches caches;
  for (const auto& block : *trf_blocks) {
    caches.push_back(
        block->as<TransformerBlock>()->att->make_cache(batch_size));
  }
  return caches;
}

int64_t Gpt2Impl::context_length() const {
  return config.context_length;
}

int64_t Gpt2Impl::vocab_size() const {
  return config.vocab_size;
}

} // namespace gpt
