#include <torch_attention/models/bert.h>

#include <check.h>
#include <large_pages.h>
#include <models/activation.h>
#include <models/layers.h>

#include <c10/core/GradMode.h>

#include <ATen/ops/arange.h>
#include <ATen/ops/embedding.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/layer_norm.h>

namespace torch_attention::models {

using torch::Tensor;

namespace {

BertOptions with_attention_of(
    BertOptions options,
    const std::vector<MultiHeadAttention>& attention,
    const RelativeBias& relative_bias) {
  options.attention(options_of("Bert", attention, options.hidden_size()));
  if (!relative_bias.is_empty()) {
    options.relative_bias(relative_bias->options);
  }
  return options;
}

RelativeBias make_relative_bias(const BertOptions& options) {
  return options.relative_bias() ? RelativeBias(*options.relative_bias())
                                 : RelativeBias(nullptr);
}

/// Returns the position of each token in its text. Of a packed batch `begins`
/// has for each token the index of the first one of its text.
Tensor positions_of(
    const Tensor& ids,
    const Tensor& begins,
    std::optional<int64_t> padding_token) {
  if (!padding_token) {
    const auto all = at::arange(ids.size(-1), ids.options());
    return begins.defined() ? all - begins : all;
  }
  const auto is_token = ids.ne(*padding_token).to(torch::kLong);
  auto before = is_token.cumsum(-1) - is_token;
  if (begins.defined()) {
    before = before - before.index_select(0, begins);
  }
  return (before + 1) * is_token + *padding_token;
}

} // namespace

BertNormImpl::BertNormImpl(int64_t size, double eps, torch::Dtype dtype)
    : weight(register_parameter("weight", torch::empty(size, dtype))),
      bias(register_parameter("bias", torch::empty(size, dtype))),
      eps_(eps) {}

Tensor BertNormImpl::forward(const Tensor& x) {
  return at::layer_norm(x, weight.sizes(), weight, bias, eps_);
}

BertBlockImpl::BertBlockImpl(
    const BertOptions& options,
    const MultiHeadAttention& attention_,
    torch::Dtype dtype)
    : attention(register_module("attention", attention_)),
      attention_norm(register_module(
          "attention_norm",
          BertNorm(options.hidden_size(), options.norm_eps(), dtype))),
      up(register_module(
          "up",
          Projection(
              options.hidden_size(),
              options.intermediate_size(),
              /*has_bias=*/true,
              dtype))),
      down(register_module(
          "down",
          Projection(
              options.intermediate_size(),
              options.hidden_size(),
              /*has_bias=*/true,
              dtype))),
      output_norm(register_module(
          "output_norm",
          BertNorm(options.hidden_size(), options.norm_eps(), dtype))),
      activation_(options.activation()) {
  check_activation(activation_);
}

Tensor BertBlockImpl::forward(const Tensor& x, const ForwardOptions& call) {
  return add(x, attention->forward(x, call));
}

std::tuple<Tensor, Tensor> BertBlockImpl::forward_with_weights(
    const Tensor& x,
    const ForwardOptions& call) {
  const auto [attended, weights] = attention->forward_with_weights(x, call);
  return {add(x, attended), weights};
}

Tensor BertBlockImpl::add(const Tensor& x, const Tensor& attended) {
  const auto normed = attention_norm->forward(x + attended);
  const auto transformed =
      down->forward(activate(activation_, up->forward(normed)));
  return output_norm->forward(normed + transformed);
}

BertImpl::BertImpl(const BertOptions& options_)
    : BertImpl(
          options_,
          make_attention(options_.attention()),
          make_relative_bias(options_)) {
  reset_parameters();
}

BertImpl::BertImpl(
    const BertOptions& options_,
    const std::vector<MultiHeadAttention>& attention,
    const RelativeBias& relative_bias_,
    std::optional<torch::Dtype> dtype_)
    : options(with_attention_of(options_, attention, relative_bias_)),
      blocks(nullptr) {
  const auto dtype = dtype_.value_or(dtype_of(attention));
  const auto size = options.embedding_size().value_or(options.hidden_size());
  const auto embedding = [&](const char* name, int64_t rows) {
    return register_parameter(name, empty_on_large_pages({rows, size}, dtype));
  };
  word_embeddings = embedding("word_embeddings", options.vocab_size());
  position_embeddings =
      embedding("position_embeddings", options.max_positions());
  if (options.num_token_types() > 0) {
    token_type_embeddings =
        embedding("token_type_embeddings", options.num_token_types());
  }
  embedding_norm = register_module(
      "embedding_norm", BertNorm(size, options.norm_eps(), dtype));
  if (size != options.hidden_size()) {
    embedding_projection = register_module(
        "embedding_projection",
        Projection(size, options.hidden_size(), /*has_bias=*/true, dtype));
  }
  blocks = register_module("blocks", torch::nn::ModuleList());
  for (const auto& layer : attention) {
    blocks->push_back(BertBlock(options, layer, dtype));
  }
  if (!relative_bias_.is_empty()) {
    relative_bias = register_module("relative_bias", relative_bias_);
  }
}

void BertImpl::reset_parameters() {
  constexpr double kDeviation = 0.02;
  const c10::NoGradGuard no_gradients;
  for (auto& item : named_parameters()) {
    const auto& name = item.key();
    if (name.find(".attention.") != std::string::npos ||
        name.rfind("relative_bias.", 0) == 0) {
      continue;
    }
    auto& parameter = item.value();
    if (parameter.dim() > 1) {
      parameter.normal_(0, kDeviation);
    } else {
      parameter.fill_(name.find("bias") != std::string::npos ? 0 : 1);
    }
  }
}

Tensor BertImpl::forward(const Tensor& ids, const Tensor& lengths) {
  check_ids("Bert", ids, /*dim=*/2, options.vocab_size());
  ForwardOptions call;
  if (lengths.defined()) {
    call.key_lengths(lengths);
  }
  call = call_for(ids.size(1), call);
  return transform(embed(ids), call);
}

Tensor BertImpl::forward_packed(const Tensor& ids, const Tensor& cu_seqlens) {
  check_ids("Bert", ids, /*dim=*/1, options.vocab_size());
  const auto lengths = cu_seqlens.diff();
  const auto begins =
      cu_seqlens.slice(0, 0, cu_seqlens.size(0) - 1).repeat_interleave(lengths);
  TORCH_ATTENTION_CHECK(
      begins.sizes() == ids.sizes(),
      "Bert: expected {} ids, but got {}",
      begins.size(0),
      ids.size(0));
  const auto call = call_for(
      lengths.max().item<int64_t>(), ForwardOptions().cu_seqlens(cu_seqlens));
  return transform(embed(ids, begins.to(ids.device())), call);
}

std::vector<Tensor> BertImpl::attention_weights(
    const Tensor& ids,
    torch::IntArrayRef layers) {
  check_ids("Bert", ids, /*dim=*/2, options.vocab_size());
  const auto call = call_for(ids.size(1), {});
  return weights_of_layers<BertBlock>("Bert", blocks, embed(ids), layers, call);
}

Tensor BertImpl::embed(const Tensor& ids, const Tensor& begins) {
  auto x = at::embedding(word_embeddings, ids) +
      at::embedding(
               position_embeddings,
               positions_of(ids, begins, options.padding_token()));
  if (token_type_embeddings.defined()) {
    x = x + token_type_embeddings[0];
  }
  x = embedding_norm->forward(x);
  return embedding_projection.is_empty() ? x : embedding_projection->forward(x);
}

ForwardOptions BertImpl::call_for(int64_t longest, ForwardOptions call) {
  TORCH_ATTENTION_CHECK(
      longest <= context_length(),
      "Bert: expected up to {} tokens, but got {}",
      context_length(),
      longest);
  if (!relative_bias.is_empty()) {
    call.bias(relative_bias->forward(longest, longest));
  }
  return call;
}

Tensor BertImpl::transform(Tensor x, const ForwardOptions& call) {
  for (const auto& block : *blocks) {
    x = block->as<BertBlock>()->forward(x, call);
  }
  return x;
}

int64_t BertImpl::context_length() const {
  return options.max_positions() -
      (options.padding_token() ? *options.padding_token() + 1 : 0);
}

} // namespace torch_attention::models
