#include <torch_attention/models/gpt2.h>

#include <check.h>
#include <models/activation.h>
#include <models/layers.h>
#include <torch_attention/nn/cache_rollback.h>
#include <torch_attention/nn/functional/linear.h>
#include <undrawn_weights.h>

#include <c10/core/GradMode.h>
#include <torch/nn/modules/activation.h>

#include <ATen/ops/arange.h>
#include <ATen/ops/layer_norm.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/zeros.h>

#include <optional>

namespace torch_attention::models {

using torch::Tensor;

namespace {

/// Returns the options with the sizes of the attention, if it is given.
Gpt2Options with_attention_of(
    Gpt2Options options,
    const std::vector<MultiHeadAttention>* attention) {
  if (attention == nullptr) {
    return options;
  }
  const auto layers = options_of("Gpt2", *attention, options.emb_dim());
  options.n_layers(static_cast<int64_t>(layers.size()));
  for (const auto& layer : layers) {
    TORCH_ATTENTION_CHECK(
        layer.context_length() == options.context_length() &&
            layer.num_heads() == layers.front().num_heads(),
        "Gpt2: expected attention of {} heads and context_length {}, but got "
        "{} and {}",
        layers.front().num_heads(),
        options.context_length(),
        layer.num_heads(),
        layer.context_length());
  }
  if (!layers.empty()) {
    options.n_heads(layers.front().num_heads());
  }
  return options;
}

} // namespace

Gpt2Options Gpt2Options::of_size(const std::string& name) {
  if (name == "355M") {
    return Gpt2Options().emb_dim(1024).n_heads(16).n_layers(24);
  }
  if (name == "774M") {
    return Gpt2Options().emb_dim(1280).n_heads(20).n_layers(36);
  }
  if (name == "1558M") {
    return Gpt2Options().emb_dim(1600).n_heads(25).n_layers(48);
  }
  TORCH_ATTENTION_CHECK(
      name == "124M",
      "expected the size 124M, 355M, 774M or 1558M, but got \"{}\"",
      name);
  return {};
}

Gpt2LayerNormImpl::Gpt2LayerNormImpl(const Gpt2Options& options)
    : scale(register_parameter("scale", torch::ones(options.emb_dim()))),
      shift(register_parameter("shift", torch::zeros(options.emb_dim()))),
      eps_(options.norm_eps()) {}

Tensor Gpt2LayerNormImpl::forward(const Tensor& x) {
  return at::layer_norm(x, {x.size(-1)}, scale, shift, eps_);
}

Gpt2FeedForwardImpl::Gpt2FeedForwardImpl(const Gpt2Options& options)
    : layers(register_module("layers", torch::nn::Sequential())),
      activation_(options.activation()) {
  check_activation(activation_);
  const auto hidden = options.hidden_dim().value_or(4 * options.emb_dim());
  // One after the other: C++ may evaluate arguments in any order, and each
  // layer draws its weights.
  layers->push_back(make_linear(options.emb_dim(), hidden, /*bias=*/true));
  layers->push_back(
      torch::nn::GELU(torch::nn::GELUOptions().approximate("tanh")));
  layers->push_back(make_linear(hidden, options.emb_dim(), /*bias=*/true));
}

Tensor Gpt2FeedForwardImpl::forward(const Tensor& x) {
  const auto& up = *layers[0]->as<torch::nn::Linear>();
  const auto& down = *layers[2]->as<torch::nn::Linear>();
  const auto hidden =
      activate(activation_, functional::linear(x, up.weight, up.bias));
  return functional::linear(hidden, down.weight, down.bias);
}

Gpt2BlockImpl::Gpt2BlockImpl(const Gpt2Options& options)
    : Gpt2BlockImpl(
          options,
          MultiHeadAttention(
              options.emb_dim(),
              options.emb_dim(),
              options.context_length(),
              options.attention_drop_rate().value_or(options.drop_rate()),
              options.n_heads(),
              options.qkv_bias())) {}

// Members are made in the order of their declaration, which is Python's.
Gpt2BlockImpl::Gpt2BlockImpl(
    const Gpt2Options& options,
    const MultiHeadAttention& attention)
    : att(register_module("att", attention)),
      ff(register_module("ff", Gpt2FeedForward(options))),
      norm1(register_module("norm1", Gpt2LayerNorm(options))),
      norm2(register_module("norm2", Gpt2LayerNorm(options))),
      drop_shortcut(register_module(
          "drop_shortcut",
          torch::nn::Dropout(options.drop_rate()))) {}

Tensor Gpt2BlockImpl::forward(const Tensor& x) {
  return add(x, att->forward(norm1->forward(x)));
}

std::tuple<Tensor, Tensor> Gpt2BlockImpl::forward_with_weights(
    const Tensor& x) {
  const auto [attended, weights] = att->forward_with_weights(norm1->forward(x));
  return {add(x, attended), weights};
}

Tensor Gpt2BlockImpl::decode(
    const Tensor& x,
    KVCache& cache,
    const DecodeOptions& call) {
  return add(x, att->decode(norm1->forward(x), cache, call));
}

Tensor Gpt2BlockImpl::decode(
    const Tensor& x,
    const BlockBatch& sequences,
    const DecodeOptions& call) {
  return add(x, att->decode(norm1->forward(x), sequences, call));
}

Tensor Gpt2BlockImpl::add(const Tensor& x, const Tensor& attended) {
  const auto sum = x + drop_shortcut->forward(attended);
  return sum + drop_shortcut->forward(ff->forward(norm2->forward(sum)));
}

Gpt2Impl::Gpt2Impl(const Gpt2Options& options_) : Gpt2Impl(options_, nullptr) {}

Gpt2Impl::Gpt2Impl(
    const Gpt2Options& options_,
    const std::vector<MultiHeadAttention>& attention)
    : Gpt2Impl(options_, &attention) {}

Gpt2Impl::Gpt2Impl(
    const Gpt2Options& options_,
    const std::vector<MultiHeadAttention>* attention)
    : options(with_attention_of(options_, attention)), trf_blocks(nullptr) {
  std::optional<UndrawnWeights> undrawn;
  if (attention != nullptr) {
    undrawn.emplace();
  }
  tok_emb = register_module(
      "tok_emb", make_embedding(options.vocab_size(), options.emb_dim()));
  pos_emb = register_module(
      "pos_emb", make_embedding(options.context_length(), options.emb_dim()));
  drop_emb = register_module(
      "drop_emb",
      torch::nn::Dropout(
          options.embedding_drop_rate().value_or(options.drop_rate())));
  trf_blocks = register_module("trf_blocks", torch::nn::ModuleList());
  for (int64_t i = 0; i < options.n_layers(); ++i) {
    trf_blocks->push_back(
        attention == nullptr
            ? Gpt2Block(options)
            : Gpt2Block(options, attention->at(static_cast<size_t>(i))));
  }
  final_norm = register_module("final_norm", Gpt2LayerNorm(options));
  if (options.head() && !options.tied()) {
    out_head = register_module(
        "out_head",
        make_linear(options.emb_dim(), options.vocab_size(), /*bias=*/false));
  }
}

Tensor Gpt2Impl::forward(const Tensor& ids) {
  return head(hidden_states(ids));
}

Tensor Gpt2Impl::hidden_states(const Tensor& ids) {
  auto x = embed(ids);
  for (const auto& block : *trf_blocks) {
    x = block->as<Gpt2Block>()->forward(x);
  }
  return final_norm->forward(x);
}

std::vector<Tensor> Gpt2Impl::attention_weights(
    const Tensor& ids,
    torch::IntArrayRef layers) {
  return weights_of_layers<Gpt2Block>("Gpt2", trf_blocks, embed(ids), layers);
}

Tensor Gpt2Impl::decode(
    const Tensor& ids,
    Caches& caches,
    const DecodeOptions& call) {
  return decode_layers(ids, caches, call);
}

Tensor Gpt2Impl::decode(
    const Tensor& ids,
    SequenceCaches& caches,
    const std::vector<int64_t>& sequences,
    const DecodeOptions& call) {
  const auto batches = caches.batches(sequences);
  return decode_layers(ids, batches, call);
}

template <typename LayerCaches>
Tensor Gpt2Impl::decode_layers(
    const Tensor& ids,
    LayerCaches& layer_caches,
    const DecodeOptions& call) {
  const c10::NoGradGuard no_gradients;
  check_step(
      "Gpt2", *this, trf_blocks->size(), ids, lengths_of(layer_caches), call);
  // A token's position is the number of its sequence's tokens before it, those
  // on the left that are padding not counted.
  Tensor first = layer_caches.front().lengths();
  if (call.new_lengths().defined()) {
    first = first + call.new_lengths().cpu() - ids.size(1);
  }
  const auto positions =
      (first.unsqueeze(1) + at::arange(ids.size(1))).clamp_min(0);
  TORCH_ATTENTION_CHECK(
      positions.max().item<int64_t>() < context_length(),
      "Gpt2: expected at most {} tokens",
      context_length());
  CacheRollback rollback(layer_caches);
  auto x = tok_emb->forward(ids) + pos_emb->forward(positions.to(ids.device()));
  for (size_t i = 0; i < layer_caches.size(); ++i) {
    x = trf_blocks[i]->as<Gpt2Block>()->decode(x, layer_caches[i], call);
  }
  auto logits = head(final_norm->forward(x.select(1, -1)));
  rollback.commit();
  return logits;
}

Tensor Gpt2Impl::embed(const Tensor& ids) {
  check_ids("Gpt2", ids, /*dim=*/2, vocab_size());
  TORCH_ATTENTION_CHECK(
      ids.size(1) <= context_length(),
      "Gpt2: expected at most {} tokens, but got {}",
      context_length(),
      ids.size(1));
  const auto positions = at::arange(ids.size(1), ids.options());
  return drop_emb->forward(tok_emb->forward(ids) + pos_emb->forward(positions));
}

Tensor Gpt2Impl::head(const Tensor& normed) {
  TORCH_CHECK(
      options.tied() || !out_head.is_empty(),
      "Gpt2: the model was made without a head");
  return functional::linear(
      normed, options.tied() ? tok_emb->weight : out_head->weight);
}

Caches Gpt2Impl::make_caches(int64_t batch_size) const {
  Caches caches;
  for (const auto& block : *trf_blocks) {
    caches.push_back(block->as<Gpt2Block>()->att->make_cache(batch_size));
  }
  return caches;
}

SequenceCaches Gpt2Impl::make_sequence_caches(
    const SequenceCachesOptions& cache_options) const {
  std::vector<BlockCacheOptions> caches;
  for (const auto& block : *trf_blocks) {
    caches.push_back(
        block_options_of(block->as<Gpt2Block>()->att, cache_options));
  }
  return SequenceCaches(caches);
}

int64_t Gpt2Impl::context_length() const {
  return options.context_length();
}

int64_t Gpt2Impl::vocab_size() const {
  return options.vocab_size();
}

} // namespace torch_attention::models
