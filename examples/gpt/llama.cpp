#include "llama.h"

#include "folder.h"

#include <torch/utils.h>

#include <torch_attention/nn/functional/linear.h>
#include <torch_attention/nn/functional/rms_norm.h>
#include <torch_attention/weights/pretrained.h>

#include <algorithm>
#include <array>
#include <cmath>

namespace gpt {

using torch::Tensor;
using torch_attention::DecodeOptions;
using torch_attention::KVCache;
using torch_attention::MultiHeadAttention;

namespace {

constexpr std::array kTypes =
    {"llama", "mistral", "qwen2", "qwen3", "gemma", "gemma2", "gemma3_text"};

} // namespace

bool is_llama_like(const std::string& model_type) {
  return std::find(kTypes.begin(), kTypes.end(), model_type) != kTypes.end();
}

LlamaConfig LlamaConfig::read(
    const std::string& folder,
    const FolderWeights& weights) {
  const auto fields = read_config(folder);
  const auto type = field<std::string>(fields, "model_type");
  TORCH_CHECK(
      is_llama_like(type),
      folder,
      ": expected a model of Llama, Mistral, Qwen2, Qwen3 or Gemma but got ",
      "the model_type ",
      type);
  LlamaConfig config;
  config.is_gemma = type.rfind("gemma", 0) == 0;
  config.has_norms_after = config.is_gemma && type != "gemma";
  const auto embedding = weights.sizes(
      weights.prefix_of("embed_tokens.weight") + "embed_tokens.weight");
  config.vocab_size = embedding[0];
  config.hidden_size = embedding[1];
  config.intermediate_size = field<int64_t>(fields, "intermediate_size");
  config.num_layers = field<int64_t>(fields, "num_hidden_layers");
  config.context_length =
      torch_attention::options_from_config(folder, 0).context_length();
  config.norm_eps = field(fields, "rms_norm_eps", 1e-6);
  config.mlp_bias = field(fields, "mlp_bias", false);
  // Gemma's configurations leave out that it is.
  config.tied = field(fields, "tie_word_embeddings", config.is_gemma);
  config.activation = field(
      fields, "hidden_act", std::string(config.is_gemma ? "gelu" : "silu"));
  if (config.is_gemma) {
    // Gemma was trained with the tangent, which the first files call "gelu".
    config.activation =
        field(fields, "hidden_activation", std::string("gelu_pytorch_tanh"));
  }
  TORCH_CHECK(
      config.activation == "silu" || config.activation == "gelu_pytorch_tanh",
      folder,
      ": expected the activation silu or gelu_pytorch_tanh but got ",
      config.activation);
  if (fields.contains("final_logit_softcapping") &&
      !fields["final_logit_softcapping"].is_null()) {
    config.logit_softcap = field<double>(fields, "final_logit_softcapping");
  } else if (type == "gemma2" && !fields.contains("final_logit_softcapping")) {
    config.logit_softcap = 30; // the default of its class
  }
  return config;
}

RmsNormImpl::RmsNormImpl(const LlamaConfig& config, torch::Dtype dtype)
    : weight(register_parameter(
          "weight",
          torch::empty(config.hidden_size, dtype))),
      eps_(config.norm_eps),
      unit_offset_(config.is_gemma) {}

Tensor RmsNormImpl::forward(const Tensor& x) {
  return torch_attention::functional::rms_norm(x, weight, eps_, unit_offset_);
}

ProjectionImpl::ProjectionImpl(
    int64_t in,
    int64_t out,
    bool has_bias,
    torch::Dtype dtype)
    : weight(register_parameter("weight", torch::empty({out, in}, dtype))) {
  if (has_bias) {
    bias = register_parameter("bias", torch::empty(out, dtype));
  }
}

Tensor ProjectionImpl::forward(const Tensor& x) {
  return torch_attention::functional::linear(x, weight, bias);
}

GatedFeedForwardImpl::GatedFeedForwardImpl(
    const LlamaConfig& config,
    torch::Dtype dtype)
    : gate_proj(register_module(
          "gate_proj",
          Projection(
              config.hidden_size,
              config.intermediate_size,
              config.mlp_bias,
              dtype))),
      up_proj(register_module(
          "up_proj",
          Projection(
              config.hidden_size,
              config.intermediate_size,
              config.mlp_bias,
              dtype))),
      down_proj(register_module(
          "down_proj",
          Projection(
              config.intermediate_size,
              config.hidden_size,
              config.mlp_bias,
              dtype))),
      silu_(config.activation == "silu") {}

Tensor GatedFeedForwardImpl::forward(const Tensor& x) {
  const auto gate = gate_proj->forward(x);
  const auto opened = silu_ ? torch::silu(gate) : torch::gelu(gate, "tanh");
  return down_proj->forward(opened * up_proj->forward(x));
}

LlamaBlockImpl::LlamaBlockImpl(
    const LlamaConfig& config,
    const MultiHeadAttention& attention,
    torch::Dtype dtype)
    : input_layernorm(
          register_module("input_layernorm", RmsNorm(config, dtype))),
      self_attn(register_module("self_attn", attention)),
      post_attention_layernorm(
          register_module("post_attention_layernorm", RmsNorm(config, dtype))),
      mlp(register_module("mlp", GatedFeedForward(config, dtype))) {
  if (config.has_norms_after) {
    pre_feedforward_layernorm =
        register_module("pre_feedforward_layernorm", RmsNorm(config, dtype));
    post_feedforward_layernorm =
        register_module("post_feedforward_layernorm", RmsNorm(config, dtype));
  }
}

Tensor LlamaBlockImpl::forward(const Tensor& x) {
  return add(x, self_attn->forward(input_layernorm->forward(x)));
}

Tensor LlamaBlockImpl::decode(
    const Tensor& x,
    KVCache& cache,
    const DecodeOptions& call) {
  return add(x, self_attn->decode(input_layernorm->forward(x), cache, call));
}

Tensor LlamaBlockImpl::add(const Tensor& x, const Tensor& attended) {
  if (!pre_feedforward_layernorm) {
    const auto sum = x + attended;
    return sum + mlp->forward(post_attention_layernorm->forward(sum));
  }
  const auto sum = x + post_attention_layernorm->forward(attended);
  const auto transformed =
      mlp->forward(pre_feedforward_layernorm->forward(sum));
  return sum + post_feedforward_layernorm->forward(transformed);
}

LlamaImpl::LlamaImpl(
    const std::string& folder,
    FolderWeights& weights,
    torch::Dtype dtype)
    : config(LlamaConfig::read(folder, weights)),
      embed_tokens(register_module(
          "embed_tokens",
          Projection(config.hidden_size, config.vocab_size, false, dtype))),
      layers(register_module("layers", torch::nn::ModuleList())),
      norm(register_module("norm", RmsNorm(config, dtype))) {
  const auto prefix = weights.prefix_of("embed_tokens.weight");
  for (int64_t i = 0; i < config.num_layers; ++i) {
    layers->push_back(LlamaBlock(
        config,
        torch_attention::attention_from_pretrained(
            folder, i, torch_attention::PretrainedOptions().dtype(dtype)),
        dtype));
    weights.take_all(prefix + "layers." + std::to_string(i) + ".self_attn");
  }
  for (auto& item : named_parameters()) {
    if (item.key().find(".self_attn.") == std::string::npos) {
      weights.copy(prefix + item.key(), item.value());
    }
  }
  if (!config.tied) {
    lm_head = register_module(
        "lm_head",
        Projection(config.hidden_size, config.vocab_size, false, dtype));
    weights.copy(
        weights.prefix_of("lm_head.weight") + "lm_head.weight",
        lm_head->weight);
  }
  weights.check_all_taken(prefix);
  eval();
}

Tensor LlamaImpl::forward(const Tensor& ids) {
  auto x = embed(ids);
  for (const auto& layer : *layers) {
    x = layer->as<LlamaBlock>()->forward(x);
  }
  return head(x);
}

Tensor LlamaImpl::decode(
    const Tensor& ids,
    Caches& caches,
    const DecodeOptions& call) {
  const torch::NoGradGuard no_gradients;
  auto x = embed(ids);
  for (size_t i = 0; i < caches.size(); ++i) {
    x = layers[i]->as<LlamaBlock>()->decode(x, caches[i], call);
  }
  return head(x.select(1, -1));
}

Tensor LlamaImpl::embed(const Tensor& ids) {
  TORCH_CHECK(
      ids.dim() == 2, "Llama: expected ids (B, T) but got ", ids.sizes());
  const auto x = torch::embedding(embed_tokens->weight, ids);
  if (!config.is_gemma) {
    return x;
  }
  // Rounded to the dtype of the weights, as Gemma was trained.
  return x * torch::full({}, std::sqrt(config.hidden_size), x.options());
}

Tensor LlamaImpl::head(const Tensor& x) {
  const auto normed = norm->forward(x);
  const auto logits =
      config.tied ? embed_tokens->forward(normed) : lm_head->forward(normed);
  return config.logit_softcap
      ? torch::tanh(logits / *config.logit_softcap) * *config.logit_softcap
      : logits;
}

Caches LlamaImpl::make_caches(int64_t batch_size) const {
  Caches caches;
  for (const auto& layer : *layers) {
    caches.push_back(
        layer->as<LlamaBlock>()->self_attn->make_cache(batch_size));
  }
  return caches;
}

int64_t LlamaImpl::context_length() const {
  return config.context_length;
}

int64_t LlamaImpl::vocab_size() const {
  return config.vocab_size;
}

std::shared_ptr<LlamaImpl> load_llama(
    const std::string& folder,
    torch::Dtype dtype) {
  FolderWeights weights(folder);
  return std::make_shared<LlamaImpl>(folder, weights, dtype);
}

} // namespace gpt
