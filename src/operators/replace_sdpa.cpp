// Replaces at::scaled_dot_product_attention.
//
// LibTorch defines this operator by others (CompositeImplicitAutograd), for all
// devices, and registers no kernel for the keys CPU and AutogradCPU. Ours are
// registered there, so nothing is overridden. They call LibTorch's definition
// for everything that they do not compute. Wrapped tensors reach AutogradCPU,
// too; the kernels pass them on to the definition, so that functionalization,
// fake tensors and functorch, and hence torch.compile and torch.export, see its
// operators.

#include <kernels/tiled.h>
#include <operators/replace_sdpa_switch.h>
#include <operators/sdpa_attention.h>

#include <ATen/Context.h>
#include <ATen/SDPBackend.h>
#include <ATen/ops/_fused_sdp_choice_cpu_dispatch.h>
#include <ATen/ops/scaled_dot_product_attention_compositeimplicitautograd_dispatch.h>
#include <torch/library.h>

namespace torch_attention::operators {

namespace {

/// Returns whether operators are intercepted: by a dispatch mode, functorch,
/// functionalization or a trace.
bool is_watched() {
  constexpr c10::DispatchKeySet kWatchers(
      {c10::DispatchKey::Python,
       c10::DispatchKey::PythonDispatcher,
       c10::DispatchKey::Functionalize,
       c10::DispatchKey::FuncTorchDynamicLayerFrontMode,
       c10::DispatchKey::FuncTorchDynamicLayerBackMode,
       c10::DispatchKey::FuncTorchVmapMode,
       c10::DispatchKey::Tracer});
  const auto included = c10::impl::tls_local_dispatch_key_set().included_;
  return !(included & kWatchers).empty();
}

/// Returns the output, or an undefined tensor if LibTorch has to compute it.
torch::Tensor output_of(const SdpaArguments& x, bool shares_heads) {
  // LibTorch refuses a mask together with `causal`, in all cases since 2.15.
  if (is_watched() || !is_readable(x) || (x.causal && x.has_mask()) ||
      !at::globalContext().userEnabledFlashSDP()) {
    return {};
  }
  const auto attention = checked_attention(x, shares_heads);
  if (!attention) {
    return {};
  }
  // Also throws if the user has disabled all of LibTorch's kernels for this
  // call.
  const auto choice = static_cast<at::SDPBackend>(at::cpu::_fused_sdp_choice(
      x.query,
      x.key,
      x.value,
      x.mask,
      x.dropout,
      x.causal,
      x.scale,
      shares_heads));
  const bool flash = choice == at::SDPBackend::flash_attention;
  const bool math = choice == at::SDPBackend::math;
  if (!flash && !math) {
    return {};
  }
  // In the memory layout of LibTorch's output, since callers may view it.
  const auto output = kernels::tiled(
      *attention,
      flash ? layout_of_flash() : kernels::OutputLayout::kHeadsFirst);
  return output.dim() > x.query.dim() && output.dim() > x.key.dim() &&
          output.dim() > x.value.dim()
      ? output.squeeze(0)
      : output;
}

torch::Tensor scaled_dot_product_attention(
    const torch::Tensor& query,
    const torch::Tensor& key,
    const torch::Tensor& value,
    const std::optional<torch::Tensor>& mask,
    double dropout,
    bool causal,
    std::optional<double> scale,
    bool shares_heads) {
  if (is_switched_on()) {
    auto output = output_of(
        {query, key, value, mask, dropout, causal, scale}, shares_heads);
    count_call(output.defined());
    if (output.defined()) {
      return output;
    }
  }
  return at::compositeimplicitautograd::scaled_dot_product_attention(
      query, key, value, mask, dropout, causal, scale, shares_heads);
}

} // namespace

// NOLINTNEXTLINE(cppcoreguidelines-avoid-non-const-global-variables)
TORCH_LIBRARY_IMPL(aten, AutogradCPU, library) {
  library.impl(
      "scaled_dot_product_attention", TORCH_FN(scaled_dot_product_attention));
}

// Tensors made in inference mode have no autograd key.
// NOLINTNEXTLINE(cppcoreguidelines-avoid-non-const-global-variables)
TORCH_LIBRARY_IMPL(aten, CPU, library) {
  library.impl(
      "scaled_dot_product_attention", TORCH_FN(scaled_dot_product_attention));
}

} // namespace torch_attention::operators
