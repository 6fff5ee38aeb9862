#include <nn/modules/small_module.h>

#include <kernels/choice.h>
#include <kernels/small_module.h>
#include <nn/modules/call.h>
#include <nn/modules/heads.h>
#include <nn/modules/multi_head_call.h>
#include <nn/modules/option_fields.h>
#include <nn/modules/partition.h>

namespace torch_attention::detail {

namespace {

/// Returns whether the module has projections alone. Its options may have been
/// changed since it was made.
bool has_projections_alone(const MultiHeadAttentionImpl& module) {
  return module.q_norm.is_empty() && module.k_norm.is_empty() &&
      module.out_norm.is_empty() && module.W_gate.is_empty() &&
      !module.sinks.defined() && !module.query_scale.defined();
}

/// Returns whether the call needs only projections and attention.
bool is_plain(
    const MultiHeadAttentionImpl& module,
    const ForwardOptions& call) {
  return OptionFields::is_small(module.options) &&
      has_projections_alone(module) && OptionFields::is_empty(call) &&
      !drops_weights(module) && PartitionAccess::of(module)->is_whole();
}

/// Returns the arguments of the kernel.
kernels::ModuleAttention whole_module(
    const MultiHeadAttentionImpl& module,
    const torch::Tensor& x) {
  static const torch::Tensor none;
  const auto& options = module.options;
  const auto tensors = [](const torch::nn::Linear& linear) {
    return linear.is_empty()
        ? kernels::LinearTensors{&none, &none}
        : kernels::LinearTensors{&linear->weight, &linear->bias};
  };
  kernels::ModuleSettings settings;
  settings.num_heads = options.num_heads();
  settings.num_kv_heads = num_kv_heads(options);
  settings.rule = options.rule();
  settings.rule.scale = settings.rule.factor(module.head_dim);
  return {
      &x,
      tensors(module.W_query),
      tensors(module.W_key),
      tensors(module.W_value),
      tensors(module.out_proj),
      settings};
}

} // namespace

torch::Tensor small_module(
    const MultiHeadAttentionImpl& module,
    const torch::Tensor& x,
    const ForwardOptions& call) {
  if (!is_plain(module, call)) {
    return {};
  }
  // The kernel does not check the rule.
  checks::check_rule(kMultiHead, module.options.rule());
  check_input(module, x);
  check_length(kMultiHead, x, call, module.options.context_length());
  const auto whole = whole_module(module, x);
  return kernels::takes_module(whole, module.options.kernel())
      ? kernels::small_module(whole)
      : torch::Tensor();
}

} // namespace torch_attention::detail
