#include "bert.h"

#include "json_file.h"
#include "model_weights.h"

#include <torch/utils.h>

#include <torch_attention/weights/pretrained.h>

#include <utility>

namespace encoder {

using torch::Tensor;
using torch_attention::MultiHeadAttention;

namespace {

/// The names that a kind of model gives to the parts of a layer in its files.
struct Names {
  const char* layer;
  const char* attention;
  const char* attention_norm;
  const char* up;
  const char* down;
  const char* output_norm;
};

Names names_of(const std::string& model_type) {
  if (model_type == "distilbert") {
    return {
        "transformer.layer.",
        ".attention.",
        ".sa_layer_norm.",
        ".ffn.lin1.",
        ".ffn.lin2.",
        ".output_layer_norm."};
  }
  const auto* norm = model_type == "mpnet" ? ".attention.LayerNorm."
                                           : ".attention.output.LayerNorm.";
  return {
      "encoder.layer.",
      ".attention.",
      norm,
      ".intermediate.dense.",
      ".output.dense.",
      ".output.LayerNorm."};
}

Tensor activate(const Tensor& x, const std::string& activation) {
  if (activation == "relu") {
    return torch::relu(x);
  }
  return torch::gelu(x, activation == "gelu" ? "none" : "tanh");
}

} // namespace

BertConfig BertConfig::read(const std::string& folder) {
  const auto path = folder + "/config.json";
  const auto fields = read_json(path);
  BertConfig config;
  config.model_type = field<std::string>(fields, "model_type", "none");
  const auto is_distilbert = config.model_type == "distilbert";
  const auto is_mpnet = config.model_type == "mpnet";
  TORCH_CHECK(
      is_distilbert || is_mpnet || config.model_type == "bert",
      path,
      ": expected the model_type bert, distilbert or mpnet but got ",
      config.model_type);
  const auto size =
      [&](const char* ours, const char* distilbert, int64_t other) {
        const auto* name = is_distilbert ? distilbert : ours;
        const auto value = field<int64_t>(fields, name, other);
        TORCH_CHECK(
            value > 0 && value < (1 << 24), path, ": ", name, " is ", value);
        return value;
      };
  config.hidden_size = size("hidden_size", "dim", 768);
  config.intermediate_size = size("intermediate_size", "hidden_dim", 3072);
  config.num_layers =
      size("num_hidden_layers", "n_layers", is_distilbert ? 6 : 12);
  config.max_positions =
      size("max_position_embeddings", "max_position_embeddings", 512);
  config.first_position = is_mpnet ? 2 : 0;
  config.norm_eps =
      is_distilbert ? 1e-12 : field(fields, "layer_norm_eps", 1e-12);
  config.activation = field<std::string>(
      fields, is_distilbert ? "activation" : "hidden_act", "gelu");
  TORCH_CHECK(
      config.activation == "gelu" || config.activation == "gelu_new" ||
          config.activation == "gelu_pytorch_tanh" ||
          config.activation == "relu",
      path,
      ": expected the activation gelu, gelu_new, gelu_pytorch_tanh or relu but "
      "got ",
      config.activation);
  config.has_token_types = config.model_type == "bert";
  config.has_relative_bias = is_mpnet;
  return config;
}

AffineImpl::AffineImpl(int64_t in, int64_t out)
    : weight(register_parameter("weight", torch::empty({out, in}))),
      bias(register_parameter("bias", torch::empty(out))) {}

Tensor AffineImpl::forward(const Tensor& x) {
  return torch::linear(x, weight, bias);
}

NormImpl::NormImpl(const BertConfig& config)
    : weight(register_parameter("weight", torch::empty(config.hidden_size))),
      bias(register_parameter("bias", torch::empty(config.hidden_size))),
      eps_(config.norm_eps) {}

Tensor NormImpl::forward(const Tensor& x) {
  return torch::layer_norm(x, weight.sizes(), weight, bias, eps_);
}

BertBlockImpl::BertBlockImpl(
    const BertConfig& config,
    const MultiHeadAttention& attention_)
    : attention(register_module("attention", attention_)),
      attention_norm(register_module("attention_norm", Norm(config))),
      up(register_module(
          "up",
          Affine(config.hidden_size, config.intermediate_size))),
      down(register_module(
          "down",
          Affine(config.intermediate_size, config.hidden_size))),
      output_norm(register_module("output_norm", Norm(config))),
      activation_(config.activation) {}

Tensor BertBlockImpl::forward(
    const Tensor& x,
    const torch_attention::ForwardOptions& call) {
  const auto normed = attention_norm->forward(x + attention->forward(x, call));
  const auto transformed =
      down->forward(activate(up->forward(normed), activation_));
  return output_norm->forward(normed + transformed);
}

BertImpl::BertImpl(const std::string& folder)
    : BertImpl(folder, ModelWeights(folder)) {}

BertImpl::BertImpl(const std::string& folder, ModelWeights&& weights)
    : config(BertConfig::read(folder)),
      embedding_norm(register_module("embedding_norm", Norm(config))),
      blocks(register_module("blocks", torch::nn::ModuleList())) {
  const auto embedding = [&](const std::string& name) {
    const auto path = "embeddings." + name + ".weight";
    auto table = register_parameter(
        name,
        torch::empty({weights.matrix_sizes(path)[0], config.hidden_size}));
    weights.copy(path, table);
    return table;
  };
  word_embeddings = embedding("word_embeddings");
  position_embeddings = embedding("position_embeddings");
  TORCH_CHECK(
      position_embeddings.size(0) == config.max_positions,
      folder,
      ": expected ",
      config.max_positions,
      " positions but got ",
      position_embeddings.size(0));
  if (config.has_token_types) {
    token_type_embeddings = embedding("token_type_embeddings");
  }
  weights.take_all("embeddings.position_ids"); // of older files
  const auto copy = [&](const std::string& path, const auto& part) {
    weights.copy(path + "weight", part->weight);
    weights.copy(path + "bias", part->bias);
  };
  copy("embeddings.LayerNorm.", embedding_norm);

  const auto options = torch_attention::PretrainedOptions().bias_by_caller(
      config.has_relative_bias);
  const auto names = names_of(config.model_type);
  for (int64_t i = 0; i < config.num_layers; ++i) {
    BertBlock block(
        config, torch_attention::attention_from_pretrained(folder, i, options));
    const auto layer = names.layer + std::to_string(i);
    weights.take_all(layer + names.attention);
    copy(layer + names.attention_norm, block->attention_norm);
    copy(layer + names.up, block->up);
    copy(layer + names.down, block->down);
    copy(layer + names.output_norm, block->output_norm);
    blocks->push_back(block);
  }
  if (config.has_relative_bias) {
    relative_bias = register_module(
        "relative_bias",
        torch_attention::relative_bias_from_pretrained(folder, options));
    weights.take_all("encoder.relative_attention_bias.");
  }
  weights.check_all_taken();
  eval();
}

Tensor BertImpl::embed(const Tensor& ids, const Tensor& positions) {
  auto x = torch::embedding(word_embeddings, ids) +
      torch::embedding(position_embeddings, positions + config.first_position);
  if (config.has_token_types) {
    x = x + token_type_embeddings[0];
  }
  return embedding_norm->forward(x);
}

Tensor BertImpl::forward(const Tensor& ids, const Tensor& lengths) {
  TORCH_CHECK(
      ids.dim() == 2, "Bert: expected ids (B, T) but got ", ids.sizes());
  const auto longest = ids.size(1);
  return transform(
      ids,
      torch::arange(longest),
      longest,
      torch_attention::ForwardOptions().key_lengths(lengths));
}

Tensor BertImpl::forward_packed(const Tensor& ids, const Tensor& cu_seqlens) {
  TORCH_CHECK(ids.dim() == 1, "Bert: expected ids (N) but got ", ids.sizes());
  const auto lengths = cu_seqlens.diff();
  const auto begins =
      cu_seqlens.slice(0, 0, cu_seqlens.size(0) - 1).repeat_interleave(lengths);
  TORCH_CHECK(
      begins.sizes() == ids.sizes(),
      "Bert: expected ",
      begins.size(0),
      " ids but got ",
      ids.size(0));
  return transform(
      ids,
      torch::arange(ids.size(0)) - begins,
      lengths.max().item<int64_t>(),
      torch_attention::ForwardOptions().cu_seqlens(cu_seqlens));
}

Tensor BertImpl::transform(
    const Tensor& ids,
    const Tensor& positions,
    int64_t longest,
    torch_attention::ForwardOptions call) {
  TORCH_CHECK(
      longest <= config.context_length(),
      "Bert: expected up to ",
      config.context_length(),
      " tokens but got ",
      longest);
  auto x = embed(ids, positions);
  if (config.has_relative_bias) {
    call.bias(relative_bias->forward(longest, longest));
  }
  for (const auto& block : *blocks) {
    x = block->as<BertBlock>()->forward(x, call);
  }
  return x;
}

} // namespace encoder
