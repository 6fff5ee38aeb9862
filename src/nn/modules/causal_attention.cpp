#include <torch_attention/nn/modules/causal_attention.h>

#include <nn/checks.h>
#include <nn/modules/call.h>
#include <nn/modules/projected.h>
#include <nn/modules/python_mask.h>
#include <nn/score_rule.h>

#include <ostream>

namespace torch_attention {

namespace {

constexpr const char* kCausal = "CausalAttention";

Projected project(
    CausalAttentionImpl& module,
    const torch::Tensor& x,
    const ForwardOptions& call,
    Kernel kernel) {
  checks::check_input(
      kCausal, x, module.W_query->weight, module.options.d_in());
  detail::check_length(kCausal, x, call, module.options.context_length());
  return project_linear(module, x, kernel);
}

functional::ScaledDotProductAttentionFuncOptions options_of(
    const CausalAttentionImpl& module,
    const torch::Tensor& x,
    const ForwardOptions& call) {
  auto options = func_options(module);
  if (!detail::is_empty(call)) {
    const auto [B, T, S] = detail::call_sizes(kCausal, x, call);
    detail::set_call(kCausal, call, {B, T, S}, options);
    detail::set_checked_chunks(kCausal, x, call, /*num_score_dims=*/3, options);
  }
  return options;
}

} // namespace

CausalAttentionImpl::CausalAttentionImpl(
    int64_t d_in,
    int64_t d_out,
    int64_t context_length,
    double dropout_p,
    bool qkv_bias)
    : CausalAttentionImpl(CausalAttentionOptions(d_in, d_out, context_length)
                              .dropout(dropout_p)
                              .qkv_bias(qkv_bias)) {}

CausalAttentionImpl::CausalAttentionImpl(const CausalAttentionOptions& options_)
    : options(options_) {
  CausalAttentionImpl::reset();
}

void CausalAttentionImpl::reset() {
  checks::check_positive(kCausal, "d_in", options.d_in());
  checks::check_positive(kCausal, "d_out", options.d_out());
  checks::check_positive(kCausal, "context_length", options.context_length());
  checks::check_dropout(kCausal, options.dropout());
  checks::check_rule(kCausal, options.rule());
  const auto linear = [&] {
    return make_linear(options.d_in(), options.d_out(), options.qkv_bias());
  };
  W_query = register_module("W_query", linear());
  W_key = register_module("W_key", linear());
  W_value = register_module("W_value", linear());
  dropout = register_module("dropout", torch::nn::Dropout(options.dropout()));
  if (options.register_mask()) {
    mask =
        register_buffer("mask", python_mask(kCausal, options.context_length()));
  }
}

void CausalAttentionImpl::reset_parameters() {
  W_query->reset_parameters();
  W_key->reset_parameters();
  W_value->reset_parameters();
}

void CausalAttentionImpl::pretty_print(std::ostream& stream) const {
  stream << "torch_attention::CausalAttention(d_in=" << options.d_in()
         << ", d_out=" << options.d_out()
         << ", context_length=" << options.context_length();
  detail::print_rule(stream, options.rule());
  stream << ", dropout=" << options.dropout() << ", qkv_bias=" << std::boolalpha
         << options.qkv_bias() << ", causal=" << options.causal()
         << ", kernel=" << options.kernel() << ")";
}

torch::Tensor CausalAttentionImpl::forward(
    const torch::Tensor& x,
    const ForwardOptions& call) {
  if (detail::lacks_batch(x, call)) {
    return forward(x.unsqueeze(0), call).squeeze(0);
  }
  const auto projected = project(*this, x, call, options.kernel());
  return functional::scaled_dot_product_attention(
      projected.queries,
      projected.keys,
      projected.values,
      options_of(*this, x, call).kernel(options.kernel()));
}

std::tuple<torch::Tensor, torch::Tensor> CausalAttentionImpl::
    forward_with_weights(const torch::Tensor& x, const ForwardOptions& call) {
  checks::check_not_packed(kCausal, call.cu_seqlens());
  const auto projected = project(*this, x, call, Kernel::kReference);
  return functional::scaled_dot_product_attention_with_weights(
      projected.queries,
      projected.keys,
      projected.values,
      options_of(*this, x, call));
}

} // namespace torch_attention
