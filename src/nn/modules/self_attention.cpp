#include <torch_attention/nn/modules/self_attention.h>

#include <kernels/plain.h>
#include <nn/checks.h>
#include <nn/modules/call.h>
#include <nn/modules/projected.h>
#include <nn/score_rule.h>
#include <torch_attention/nn/functional/attention.h>

#include <ostream>

namespace torch_attention {

namespace {

constexpr const char* kV1 = "SelfAttentionV1";
constexpr const char* kV2 = "SelfAttentionV2";

void check_options(const char* module, const SelfAttentionOptions& options) {
  checks::check_positive(module, "d_in", options.d_in());
  checks::check_positive(module, "d_out", options.d_out());
  checks::check_rule_without_positions(module, options.rule());
}

functional::ScaledDotProductAttentionFuncOptions options_of(
    const char* name,
    const SelfAttentionOptions& options,
    const torch::Tensor& x,
    const ForwardOptions& call) {
  // Options may have changed since the module was made.
  checks::check_rule_without_positions(name, options.rule());
  auto result =
      functional::ScaledDotProductAttentionFuncOptions().rule(options.rule());
  if (!detail::is_empty(call)) {
    const auto [B, T, S] = detail::call_sizes(name, x, call);
    detail::set_call(
        name,
        call,
        x.dim() == 2 ? std::vector<int64_t>{T, S}
                     : std::vector<int64_t>{B, T, S},
        result);
  }
  return result;
}

Projected project(SelfAttentionV1Impl& module, const torch::Tensor& x) {
  checks::check_input(
      kV1,
      x,
      module.W_query,
      module.options.d_in(),
      /*takes_2d=*/true);
  kernels::check_device(kV1, "W_key", module.W_key, x.device());
  kernels::check_device(kV1, "W_value", module.W_value, x.device());
  Projected projected;
  projected.keys = torch::matmul(x, module.W_key);
  projected.queries = torch::matmul(x, module.W_query);
  projected.values = torch::matmul(x, module.W_value);
  return projected;
}

Projected project(SelfAttentionV2Impl& module, const torch::Tensor& x) {
  checks::check_input(
      kV2,
      x,
      module.W_query->weight,
      module.options.d_in(),
      /*takes_2d=*/true);
  return project_linear(module, x, Kernel::kReference);
}

template <typename Module>
torch::Tensor forward_module(
    const char* name,
    Module& module,
    const torch::Tensor& x,
    const ForwardOptions& call) {
  if (detail::lacks_batch(x, call)) {
    return forward_module(name, module, x.unsqueeze(0), call).squeeze(0);
  }
  const auto [queries, keys, values] = project(module, x);
  return functional::scaled_dot_product_attention(
      queries,
      keys,
      values,
      options_of(name, module.options, x, call)
          .kernel(module.options.kernel()));
}

template <typename Module>
std::tuple<torch::Tensor, torch::Tensor> forward_module_with_weights(
    const char* name,
    Module& module,
    const torch::Tensor& x,
    const ForwardOptions& call) {
  checks::check_not_packed(name, call.cu_seqlens());
  const auto [queries, keys, values] = project(module, x);
  return functional::scaled_dot_product_attention_with_weights(
      queries, keys, values, options_of(name, module.options, x, call));
}

} // namespace

SelfAttentionV1Impl::SelfAttentionV1Impl(int64_t d_in, int64_t d_out)
    : SelfAttentionV1Impl(SelfAttentionOptions(d_in, d_out)) {}

SelfAttentionV1Impl::SelfAttentionV1Impl(const SelfAttentionOptions& options_)
    : options(options_) {
  SelfAttentionV1Impl::reset();
}

void SelfAttentionV1Impl::reset() {
  check_options(kV1, options);
  TORCH_CHECK(
      !options.qkv_bias(),
      "SelfAttentionV1: expected qkv_bias = false, since it has no bias; "
      "SelfAttentionV2 has");
  const auto sizes = {options.d_in(), options.d_out()};
  W_query = register_parameter("W_query", torch::empty(sizes));
  W_key = register_parameter("W_key", torch::empty(sizes));
  W_value = register_parameter("W_value", torch::empty(sizes));
  reset_parameters();
}

void SelfAttentionV1Impl::reset_parameters() {
  torch::NoGradGuard no_grad;
  for (auto* weight : {&W_query, &W_key, &W_value}) {
    weight->uniform_(0, 1);
  }
}

void SelfAttentionV1Impl::pretty_print(std::ostream& stream) const {
  stream << "torch_attention::SelfAttentionV1(d_in=" << options.d_in()
         << ", d_out=" << options.d_out();
  detail::print_rule(stream, options.rule());
  stream << ", kernel=" << options.kernel() << ")";
}

torch::Tensor SelfAttentionV1Impl::forward(
    const torch::Tensor& x,
    const ForwardOptions& call) {
  return forward_module(kV1, *this, x, call);
}

std::tuple<torch::Tensor, torch::Tensor> SelfAttentionV1Impl::
    forward_with_weights(const torch::Tensor& x, const ForwardOptions& call) {
  return forward_module_with_weights(kV1, *this, x, call);
}

SelfAttentionV2Impl::SelfAttentionV2Impl(
    int64_t d_in,
    int64_t d_out,
    bool qkv_bias)
    : SelfAttentionV2Impl(
          SelfAttentionOptions(d_in, d_out).qkv_bias(qkv_bias)) {}

SelfAttentionV2Impl::SelfAttentionV2Impl(const SelfAttentionOptions& options_)
    : options(options_) {
  SelfAttentionV2Impl::reset();
}

void SelfAttentionV2Impl::reset() {
  check_options(kV2, options);
  const auto linear = [&] {
    return make_linear(options.d_in(), options.d_out(), options.qkv_bias());
  };
  W_query = register_module("W_query", linear());
  W_key = register_module("W_key", linear());
  W_value = register_module("W_value", linear());
}

void SelfAttentionV2Impl::reset_parameters() {
  W_query->reset_parameters();
  W_key->reset_parameters();
  W_value->reset_parameters();
}

void SelfAttentionV2Impl::pretty_print(std::ostream& stream) const {
  stream << "torch_attention::SelfAttentionV2(d_in=" << options.d_in()
         << ", d_out=" << options.d_out();
  detail::print_rule(stream, options.rule());
  stream << ", qkv_bias=" << std::boolalpha << options.qkv_bias()
         << ", kernel=" << options.kernel() << ")";
}

torch::Tensor SelfAttentionV2Impl::forward(
    const torch::Tensor& x,
    const ForwardOptions& call) {
  return forward_module(kV2, *this, x, call);
}

std::tuple<torch::Tensor, torch::Tensor> SelfAttentionV2Impl::
    forward_with_weights(const torch::Tensor& x, const ForwardOptions& call) {
  return forward_module_with_weights(kV2, *this, x, call);
}

} // namespace torch_attention
