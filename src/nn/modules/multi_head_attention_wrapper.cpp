#include <torch_attention/nn/modules/multi_head_attention_wrapper.h>

#include <check.h>
#include <kernels/block_mask.h>
#include <kernels/choice.h>
#include <kernels/heads.h>
#include <kernels/linear.h>
#include <nn/checks.h>
#include <nn/modules/call.h>
#include <nn/modules/projected.h>
#include <torch_attention/nn/modules/causal_attention.h>

#include <ostream>
#include <tuple>
#include <utility>
#include <vector>

namespace torch_attention {

namespace {

constexpr const char* kWrapper = "MultiHeadAttentionWrapper";

CausalAttentionImpl& head(const torch::nn::ModuleList& heads, size_t index) {
  auto* module = heads->ptr(index)->as<CausalAttentionImpl>();
  TORCH_ATTENTION_CHECK(
      module != nullptr,
      "MultiHeadAttentionWrapper: expected heads.{} to be a "
      "CausalAttention, but it is a {}",
      index,
      heads->ptr(index)->name());
  return *module;
}

CausalAttentionOptions head_options(
    const MultiHeadAttentionWrapperOptions& options) {
  return CausalAttentionOptions(
             options.d_in(), options.d_out(), options.context_length())
      .rule(options.rule())
      .dropout(options.dropout())
      .qkv_bias(options.qkv_bias())
      .register_mask(options.register_mask())
      .kernel(options.kernel());
}

void check_input(
    const torch::nn::ModuleList& heads,
    const torch::Tensor& x,
    const ForwardOptions& call) {
  const auto& first = head(heads, 0);
  checks::check_input(kWrapper, x, first.W_query->weight, first.options.d_in());
  detail::check_length(kWrapper, x, call, first.options.context_length());
}

/// With fewer tokens, concatenating the heads' weights takes longer than one
/// large matrix product saves.
constexpr int64_t kFewTokens = 256;

/// Returns whether the heads differ only in the values of their weights. Users
/// may have replaced some of them.
bool are_alike(const torch::nn::ModuleList& heads) {
  const auto& first = head(heads, 0);
  for (size_t i = 1; i < heads->size(); ++i) {
    const auto& other = head(heads, i);
    const auto same = [&](const torch::nn::Linear& a,
                          const torch::nn::Linear& b) {
      return a->weight.sizes() == b->weight.sizes() &&
          a->weight.options().type_equal(b->weight.options()) &&
          a->weight.device() == b->weight.device() &&
          a->bias.defined() == b->bias.defined();
    };
    if (!same(first.W_query, other.W_query) ||
        !same(first.W_key, other.W_key) ||
        !same(first.W_value, other.W_value) ||
        first.options.rule() != other.options.rule() ||
        first.options.kernel() != other.options.kernel() ||
        first.options.context_length() != other.options.context_length() ||
        first.dropout->options.p() != other.dropout->options.p() ||
        first.dropout->is_training() != other.dropout->is_training()) {
      return false;
    }
  }
  return true;
}

/// Returns one projection of all heads: (B, num_heads, T, d_out).
torch::Tensor project_heads(
    const torch::nn::ModuleList& heads,
    torch::nn::Linear CausalAttentionImpl::*projection,
    const torch::Tensor& x) {
  std::vector<torch::Tensor> weights;
  std::vector<torch::Tensor> biases;
  for (size_t i = 0; i < heads->size(); ++i) {
    const auto& linear = head(heads, i).*projection;
    weights.push_back(linear->weight);
    if (linear->bias.defined()) {
      biases.push_back(linear->bias);
    }
  }
  const auto bias = biases.empty() ? torch::Tensor() : torch::cat(biases);
  return kernels::split_heads(
      kernels::linear(x, torch::cat(weights), bias),
      static_cast<int64_t>(heads->size()));
}

/// Sets the arguments of a call, for scores (B, num_heads, T, T).
void set_call(
    const torch::nn::ModuleList& heads,
    const torch::Tensor& x,
    const ForwardOptions& call,
    functional::ScaledDotProductAttentionFuncOptions& options) {
  if (!detail::is_empty(call)) {
    const auto [B, T, S] = detail::call_sizes(kWrapper, x, call);
    const auto H = static_cast<int64_t>(heads->size());
    detail::set_call(kWrapper, call, {B, H, T, S}, options);
  }
}

/// Computes all heads, which must be alike, in one call of functional
/// attention. Returns their outputs and, if requested, their attention weights.
std::tuple<torch::Tensor, torch::Tensor> forward_together(
    const torch::nn::ModuleList& heads,
    const torch::Tensor& x,
    const ForwardOptions& call,
    bool with_weights) {
  const auto& first = head(heads, 0);
  auto options = func_options(first);
  set_call(heads, x, call, options);
  detail::set_checked_chunks(kWrapper, x, call, /*num_score_dims=*/4, options);
  const auto queries = project_heads(heads, &CausalAttentionImpl::W_query, x);
  const auto keys = project_heads(heads, &CausalAttentionImpl::W_key, x);
  const auto values = project_heads(heads, &CausalAttentionImpl::W_value, x);
  if (with_weights) {
    const auto [context, weights] =
        functional::scaled_dot_product_attention_with_weights(
            queries, keys, values, options);
    return {kernels::combine_heads(context), weights};
  }
  const auto context = functional::scaled_dot_product_attention(
      queries, keys, values, options.kernel(first.options.kernel()));
  return {kernels::combine_heads(context), torch::Tensor()};
}

/// Returns whether there is a function, which gets the scores of all heads.
bool has_function(
    const torch::nn::ModuleList& heads,
    const ForwardOptions& call) {
  TORCH_CHECK(
      !call.scores() || are_alike(heads),
      "MultiHeadAttentionWrapper: expected heads that are alike beside a "
      "function `scores`, which gets the scores of all of them");
  return static_cast<bool>(call.scores());
}

/// Returns the checked arguments of a call for all heads, but for the visible
/// blocks, which the rule of a head takes.
functional::ScaledDotProductAttentionFuncOptions options_of(
    const torch::nn::ModuleList& heads,
    const torch::Tensor& x,
    const ForwardOptions& call) {
  functional::ScaledDotProductAttentionFuncOptions options;
  set_call(
      heads, x, ForwardOptions(call).visible_blocks(torch::Tensor()), options);
  return options;
}

BlockMask mask_of_head(const BlockMask& mask, size_t index) {
  return mask.num_heads() == 1
      ? mask
      : BlockMask::unpack(kernels::block_mask_of_head(
            mask.packed(), static_cast<int64_t>(index)));
}

/// Returns the arguments of `call` for one head, with scores (B, T, T).
ForwardOptions call_of_head(
    size_t index,
    const ForwardOptions& call,
    const functional::ScaledDotProductAttentionFuncOptions& checked) {
  const auto of_head = [&](const torch::Tensor& x) {
    if (!x.defined() || x.dim() == 2) {
      return x;
    }
    return x.select(1, x.size(1) == 1 ? 0 : static_cast<int64_t>(index));
  };
  return ForwardOptions(call)
      .mask(of_head(checked.mask()))
      .block_mask(mask_of_head(checked.block_mask(), index))
      .bias(of_head(checked.bias()));
}

} // namespace

MultiHeadAttentionWrapperImpl::MultiHeadAttentionWrapperImpl(
    int64_t d_in,
    int64_t d_out,
    int64_t context_length,
    double dropout_p,
    int64_t num_heads,
    bool qkv_bias)
    : MultiHeadAttentionWrapperImpl(MultiHeadAttentionWrapperOptions(
                                        d_in,
                                        d_out,
                                        context_length,
                                        num_heads)
                                        .dropout(dropout_p)
                                        .qkv_bias(qkv_bias)) {}

MultiHeadAttentionWrapperImpl::MultiHeadAttentionWrapperImpl(
    const MultiHeadAttentionWrapperOptions& options_)
    : options(options_) {
  MultiHeadAttentionWrapperImpl::reset();
}

void MultiHeadAttentionWrapperImpl::reset() {
  checks::check_positive(kWrapper, "num_heads", options.num_heads());
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

torch::Tensor MultiHeadAttentionWrapperImpl::forward(
    const torch::Tensor& x,
    const ForwardOptions& call) {
  if (detail::lacks_batch(x, call)) {
    return forward(x.unsqueeze(0), call).squeeze(0);
  }
  check_input(heads, x, call);
  if (has_function(heads, call) ||
      (kernels::resolved(head(heads, 0).options.kernel()) !=
           Kernel::kReference &&
       x.size(0) * x.size(1) >= kFewTokens && are_alike(heads))) {
    return std::get<0>(
        forward_together(heads, x, call, /*with_weights=*/false));
  }
  const auto call_options = options_of(heads, x, call);
  std::vector<torch::Tensor> contexts;
  contexts.reserve(heads->size());
  for (size_t i = 0; i < heads->size(); ++i) {
    contexts.push_back(
        head(heads, i).forward(x, call_of_head(i, call, call_options)));
  }
  return torch::cat(contexts, -1);
}

std::tuple<torch::Tensor, torch::Tensor> MultiHeadAttentionWrapperImpl::
    forward_with_weights(const torch::Tensor& x, const ForwardOptions& call) {
  checks::check_not_packed(kWrapper, call.cu_seqlens());
  check_input(heads, x, call);
  if (has_function(heads, call)) {
    return forward_together(heads, x, call, /*with_weights=*/true);
  }
  const auto call_options = options_of(heads, x, call);
  std::vector<torch::Tensor> contexts;
  std::vector<torch::Tensor> weights;
  for (size_t i = 0; i < heads->size(); ++i) {
    auto [context, head_weights] = head(heads, i).forward_with_weights(
        x, call_of_head(i, call, call_options));
    contexts.push_back(std::move(context));
    weights.push_back(std::move(head_weights));
  }
  return {torch::cat(contexts, -1), torch::stack(weights, 1)};
}

} // namespace torch_attention
