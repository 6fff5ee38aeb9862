#include <torch_attention/models/llama.h>

#include <models/activation.h>
#include <models/layers.h>
#include <torch_attention/nn/cache_rollback.h>
#include <torch_attention/nn/functional/rms_norm.h>

#include <c10/core/GradMode.h>

#include <ATen/ops/embedding.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/full.h>

#include <cmath>

namespace torch_attention::models {

using torch::Tensor;

namespace {

LlamaOptions with_attention_of(
    LlamaOptions options,
    const std::vector<MultiHeadAttention>& attention) {
  options.attention(options_of("Llama", attention, options.hidden_size()));
  return options;
}

} // namespace

LlamaNormImpl::LlamaNormImpl(const LlamaOptions& options, torch::Dtype dtype)
    : weight(register_parameter(
          "weight",
          torch::empty(options.hidden_size(), dtype))),
      eps_(options.norm_eps()),
      unit_offset_(options.gemma()) {}

Tensor LlamaNormImpl::forward(const Tensor& x) {
  return functional::rms_norm(x, weight, eps_, unit_offset_);
}

LlamaFeedForwardImpl::LlamaFeedForwardImpl(
    const LlamaOptions& options,
    torch::Dtype dtype)
    : gate_proj(register_module(
          "gate_proj",
          Projection(
              options.hidden_size(),
              options.intermediate_size(),
              options.mlp_bias(),
              dtype))),
      up_proj(register_module(
          "up_proj",
          Projection(
              options.hidden_size(),
              options.intermediate_size(),
              options.mlp_bias(),
              dtype))),
      down_proj(register_module(
          "down_proj",
          Projection(
              options.intermediate_size(),
              options.hidden_size(),
              options.mlp_bias(),
              dtype))),
      activation_(options.activation()) {
  check_activation(activation_);
}

Tensor LlamaFeedForwardImpl::forward(const Tensor& x) {
  const auto opened = activate(activation_, gate_proj->forward(x));
  return down_proj->forward(opened * up_proj->forward(x));
}

LlamaBlockImpl::LlamaBlockImpl(
    const LlamaOptions& options,
    const MultiHeadAttention& attention,
    torch::Dtype dtype)
    : input_layernorm(
          register_module("input_layernorm", LlamaNorm(options, dtype))),
      self_attn(register_module("self_attn", attention)),
      post_attention_layernorm(register_module(
          "post_attention_layernorm",
          LlamaNorm(options, dtype))),
      mlp(register_module("mlp", LlamaFeedForward(options, dtype))) {
  if (options.norms_after()) {
    pre_feedforward_layernorm =
        register_module("pre_feedforward_layernorm", LlamaNorm(options, dtype));
    post_feedforward_layernorm = register_module(
        "post_feedforward_layernorm", LlamaNorm(options, dtype));
  }
}

Tensor LlamaBlockImpl::forward(const Tensor& x) {
  return add(x, self_attn->forward(input_layernorm->forward(x)));
}

std::tuple<Tensor, Tensor> LlamaBlockImpl::forward_with_weights(
    const Tensor& x) {
  const auto [attended, weights] =
      self_attn->forward_with_weights(input_layernorm->forward(x));
  return {add(x, attended), weights};
}

Tensor LlamaBlockImpl::decode(
    const Tensor& x,
    KVCache& cache,
    const DecodeOptions& call) {
  return add(x, self_attn->decode(input_layernorm->forward(x), cache, call));
}

Tensor LlamaBlockImpl::decode(
    const Tensor& x,
    const BlockBatch& sequences,
    const DecodeOptions& call) {
  return add(
      x, self_attn->decode(input_layernorm->forward(x), sequences, call));
}

Tensor LlamaBlockImpl::add(const Tensor& x, const Tensor& attended) {
  if (pre_feedforward_layernorm.is_empty()) {
    const auto sum = x + attended;
    return sum + mlp->forward(post_attention_layernorm->forward(sum));
  }
  const auto sum = x + post_attention_layernorm->forward(attended);
  const auto transformed =
      mlp->forward(pre_feedforward_layernorm->forward(sum));
  return sum + post_feedforward_layernorm->forward(transformed);
}

LlamaImpl::LlamaImpl(const LlamaOptions& options_)
    : LlamaImpl(options_, make_attention(options_.attention())) {
  reset_parameters();
}

LlamaImpl::LlamaImpl(
    const LlamaOptions& options_,
    const std::vector<MultiHeadAttention>& attention,
    std::optional<torch::Dtype> dtype_)
    : options(with_attention_of(options_, attention)),
      layers(register_module("layers", torch::nn::ModuleList())) {
  const auto dtype = dtype_.value_or(dtype_of(attention));
  const auto embedding = [&] {
    return Projection(
        options.hidden_size(), options.vocab_size(), /*has_bias=*/false, dtype);
  };
  embed_tokens = register_module("embed_tokens", embedding());
  for (const auto& layer : attention) {
    layers->push_back(LlamaBlock(options, layer, dtype));
  }
  norm = register_module("norm", LlamaNorm(options, dtype));
  if (options.head() && !options.tied()) {
    lm_head = register_module("lm_head", embedding());
  }
}

void LlamaImpl::reset_parameters() {
  constexpr double kDeviation = 0.02;
  const c10::NoGradGuard no_gradients;
  for (auto& item : named_parameters()) {
    auto& parameter = item.value();
    if (item.key().find(".self_attn.") != std::string::npos) {
      continue;
    }
    if (parameter.dim() > 1) {
      parameter.normal_(0, kDeviation);
    } else {
      const auto is_bias = item.key().find("bias") != std::string::npos;
      parameter.fill_(is_bias || options.gemma() ? 0 : 1);
    }
  }
}

Tensor LlamaImpl::forward(const Tensor& ids) {
  return head(hidden_states(ids));
}

Tensor LlamaImpl::hidden_states(const Tensor& ids) {
  auto x = embed(ids);
  for (const auto& layer : *layers) {
    x = layer->as<LlamaBlock>()->forward(x);
  }
  return norm->forward(x);
}

std::vector<Tensor> LlamaImpl::attention_weights(
    const Tensor& ids,
    torch::IntArrayRef wanted) {
  return weights_of_layers<LlamaBlock>("Llama", layers, embed(ids), wanted);
}

Tensor LlamaImpl::decode(
    const Tensor& ids,
    Caches& caches,
    const DecodeOptions& call) {
  return decode_layers(ids, caches, call);
}

Tensor LlamaImpl::decode(
    const Tensor& ids,
    SequenceCaches& caches,
    const std::vector<int64_t>& sequences,
    const DecodeOptions& call) {
  const auto batches = caches.batches(sequences);
  return decode_layers(ids, batches, call);
}

template <typename LayerCaches>
Tensor LlamaImpl::decode_layers(
    const Tensor& ids,
    LayerCaches& layer_caches,
    const DecodeOptions& call) {
  const c10::NoGradGuard no_gradients;
  check_step(
      "Llama", *this, layers->size(), ids, lengths_of(layer_caches), call);
  CacheRollback rollback(layer_caches);
  auto x = embed(ids);
  for (size_t i = 0; i < layer_caches.size(); ++i) {
    x = layers[i]->as<LlamaBlock>()->decode(x, layer_caches[i], call);
  }
  auto logits = head(norm->forward(x.select(1, -1)));
  rollback.commit();
  return logits;
}

Tensor LlamaImpl::embed(const Tensor& ids) {
  check_ids("Llama", ids, /*dim=*/2, vocab_size());
  const auto x = at::embedding(embed_tokens->weight, ids);
  if (!options.gemma()) {
    return x;
  }
  // Rounded to the dtype of the weights, as Gemma was trained.
  const auto factor = std::sqrt(static_cast<double>(options.hidden_size()));
  return x * at::full({}, factor, x.options());
}

Tensor LlamaImpl::head(const Tensor& normed) {
  TORCH_CHECK(
      options.tied() || !lm_head.is_empty(),
      "Llama: the model was made without a head");
  const auto logits =
      options.tied() ? embed_tokens->forward(normed) : lm_head->forward(normed);
  const auto softcap = options.logit_softcap();
  return softcap ? activate("tanh", logits / *softcap) * *softcap : logits;
}

Caches LlamaImpl::make_caches(int64_t batch_size) const {
  Caches caches;
  for (const auto& layer : *layers) {
    caches.push_back(
        layer->as<LlamaBlock>()->self_attn->make_cache(batch_size));
  }
  return caches;
}

SequenceCaches LlamaImpl::make_sequence_caches(
    const SequenceCachesOptions& cache_options) const {
  std::vector<BlockCacheOptions> caches;
  for (const auto& layer : *layers) {
    caches.push_back(
        block_options_of(layer->as<LlamaBlock>()->self_attn, cache_options));
  }
  return SequenceCaches(caches);
}

int64_t LlamaImpl::context_length() const {
  return options.attention().empty()
      ? 0
      : options.attention().front().context_length();
}

int64_t LlamaImpl::vocab_size() const {
  return options.vocab_size();
}

} // namespace torch_attention::models
