#include <torch_attention/nn/modules/multi_head_attention_wrapper.h>

#include <nn/checks.h>
#include <torch_attention/nn/modules/causal_attention.h>

#include <ostream>
#include <utility>
#include <vector>

namespace torch_attention {

namespace {

constexpr const char* kName = "MultiHeadAttentionWrapper";

CausalAttentionImpl& head(const torch::nn::ModuleList& heads, size_t index) {
  auto* module = heads->ptr(index)->as<CausalAttentionImpl>();
  TORCH_CHECK(
      module != nullptr,
      kName,
      ": expected heads.",
      index,
      " to be a CausalAttention, but it is a ",
      heads->ptr(index)->name());
  return *module;
}

CausalAttentionOptions head_options(const MultiHeadAttentionOptions& options) {
  return CausalAttentionOptions(
             options.d_in(), options.d_out(), options.context_length())
      .dropout(options.dropout())
      .qkv_bias(options.qkv_bias())
      .causal(options.causal())
      .window(options.window())
      .mask(options.mask())
      .scale(options.scale())
      .kernel(options.kernel());
}

} // namespace

MultiHeadAttentionWrapperImpl::MultiHeadAttentionWrapperImpl(
    int64_t d_in,
    int64_t d_out,
    int64_t context_length,
    double dropout_p,
    int64_t num_heads,
    bool qkv_bias)
    : MultiHeadAttentionWrapperImpl(
          MultiHeadAttentionOptions(d_in, d_out, context_length, num_heads)
              .dropout(dropout_p)
              .qkv_bias(qkv_bias)) {}

MultiHeadAttentionWrapperImpl::MultiHeadAttentionWrapperImpl(
    const MultiHeadAttentionOptions& options_)
    : options(options_) {
  MultiHeadAttentionWrapperImpl::reset();
}

void MultiHeadAttentionWrapperImpl::reset() {
  checks::check_positive(kName, "num_heads", options.num_heads());
  TORCH_CHECK(
      options.num_kv_heads().value_or(options.num_heads()) ==
          options.num_heads(),
      kName,
      ": expected num_kv_heads = num_heads = ",
      options.num_heads(),
      ", since each head has its own keys, but got ",
      *options.num_kv_heads());
  TORCH_CHECK(
      !options.rotary(),
      kName,
      ": expected no rotary embedding, which is for MultiHeadAttention");
  heads = register_module("heads", torch::nn::ModuleList());
  for (int64_t i = 0; i < options.num_heads(); ++i) {
    heads->push_back(CausalAttention(head_options(options)));
  }
}

void MultiHeadAttentionWrapperImpl::reset_parameters() {
  for (size_t i = 0; i < heads->size(); ++i) {
    head(heads, i).reset_parameters();
  }
}

void MultiHeadAttentionWrapperImpl::pretty_print(std::ostream& stream) const {
  stream << "torch_attention::MultiHeadAttentionWrapper(num_heads="
         << options.num_heads() << ")";
}

torch::Tensor MultiHeadAttentionWrapperImpl::forward(const torch::Tensor& x) {
  std::vector<torch::Tensor> contexts;
  contexts.reserve(heads->size());
  for (size_t i = 0; i < heads->size(); ++i) {
    contexts.push_back(head(heads, i).forward(x));
  }
  return torch::cat(contexts, -1);
}

std::tuple<torch::Tensor, torch::Tensor> MultiHeadAttentionWrapperImpl::
    forward_with_weights(const torch::Tensor& x) {
  std::vector<torch::Tensor> contexts;
  std::vector<torch::Tensor> weights;
  for (size_t i = 0; i < heads->size(); ++i) {
    auto [context, head_weights] = head(heads, i).forward_with_weights(x);
    contexts.push_back(std::move(context));
    weights.push_back(std::move(head_weights));
  }
  return {torch::cat(contexts, -1), torch::stack(weights, 1)};
}

} // namespace torch_attention
