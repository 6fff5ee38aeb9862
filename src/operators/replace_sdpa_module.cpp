// Replaces aten::_native_multi_head_attention, a whole nn.MultiheadAttention,
// which Python's TransformerEncoder calls in evaluation instead of
// scaled_dot_product_attention. Registered for the key BackendSelect, as in
// replace_sdpa_flash.cpp.

#include <kernels/heads.h>
#include <kernels/linear.h>
#include <kernels/plain.h>
#include <kernels/tiled.h>
#include <operators/replace_sdpa_switch.h>
#include <operators/sdpa_attention.h>

#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/ops/_native_multi_head_attention.h>
#include <torch/library.h>

#include <tuple>

namespace torch_attention::operators {

namespace {

/// The arguments: C features, C / H for each of H heads.
struct NativeModule {
  /// (B, T, C)
  const torch::Tensor& x;
  int64_t C;
  int64_t H;
  /// (3 C, C) and (3 C)
  const torch::Tensor& weight;
  const torch::Tensor& bias;
  /// (C, C) and (C)
  const torch::Tensor& out_weight;
  const torch::Tensor& out_bias;
  /// hides where it is not 0
  const std::optional<torch::Tensor>& mask;
  std::optional<int64_t> mask_type;
};

void check_devices(const NativeModule& m) {
  const auto check_one = [&](const char* what, const torch::Tensor& x) {
    kernels::check_device(
        "_native_multi_head_attention", what, x, m.x.device());
  };
  check_one("qkv_weight", m.weight);
  check_one("qkv_bias", m.bias);
  check_one("proj_weight", m.out_weight);
  check_one("proj_bias", m.out_bias);
  if (m.mask) {
    check_one("mask", *m.mask);
  }
}

bool is_readable(const NativeModule& m) {
  for (const auto* x : {&m.x, &m.weight, &m.bias, &m.out_weight, &m.out_bias}) {
    if (!has_memory(*x) || x->scalar_type() != m.x.scalar_type()) {
      return false;
    }
  }
  return is_computed(m.x.scalar_type()) && m.x.dim() == 3 &&
      m.x.size(2) == m.C && m.x.numel() > 0 && m.H > 0 && m.C % m.H == 0 &&
      m.weight.sizes() == torch::IntArrayRef({3 * m.C, m.C}) &&
      m.bias.sizes() == torch::IntArrayRef({3 * m.C}) &&
      m.out_weight.sizes() == torch::IntArrayRef({m.C, m.C}) &&
      m.out_bias.sizes() == torch::IntArrayRef({m.C});
}

/// Sets `hidden` to a mask that broadcasts to the scores (B, H, T, T), or
/// leaves it undefined if there is none. Returns whether LibTorch would accept
/// the mask.
bool set_hidden(const NativeModule& m, torch::Tensor& hidden) {
  if (!m.mask || !m.mask->defined()) {
    return true;
  }
  if (!has_memory(*m.mask) || !m.mask_type) {
    return false;
  }
  const auto B = m.x.size(0);
  const auto T = m.x.size(1);
  const auto mask = m.mask->to(torch::kBool);
  const auto has_shape = [&](torch::IntArrayRef sizes) {
    return mask.sizes() == sizes;
  };
  switch (*m.mask_type) {
    case 0:
      hidden = mask;
      return has_shape({T, T});
    case 1:
      hidden = mask.dim() == 2 ? mask.view({mask.size(0), 1, 1, mask.size(1)})
                               : mask;
      return has_shape({B, T});
    case 2:
      hidden = mask;
      return has_shape({B, m.H, T, T});
    default:
      return false;
  }
}

/// Returns the output (B, T, C), or an undefined tensor if LibTorch has to
/// compute it.
torch::Tensor output_of(const NativeModule& m) {
  check_devices(m);
  kernels::Attention a;
  if (!is_readable(m) || !set_hidden(m, a.mask)) {
    return {};
  }
  const auto projected = kernels::linear(m.x, m.weight, m.bias).chunk(3, -1);
  a.query = kernels::split_heads(projected[0], m.H);
  a.key = kernels::split_heads(projected[1], m.H);
  a.value = kernels::split_heads(projected[2], m.H);
  const auto context = kernels::run_forward(
      kernels::prepared(a),
      /*dropout_seed=*/0,
      kernels::Statistics::kNone,
      kernels::OutputLayout::kTokensFirst);
  return kernels::linear(
      kernels::combine_heads(context.output), m.out_weight, m.out_bias);
}

std::tuple<torch::Tensor, torch::Tensor> native_multi_head_attention(
    c10::DispatchKeySet keys,
    const torch::Tensor& query,
    const torch::Tensor& key,
    const torch::Tensor& value,
    int64_t embed_dim,
    int64_t num_heads,
    const torch::Tensor& weight,
    const torch::Tensor& bias,
    const torch::Tensor& out_weight,
    const torch::Tensor& out_bias,
    const std::optional<torch::Tensor>& mask,
    bool needs_weights,
    bool averages_weights,
    std::optional<int64_t> mask_type) {
  if (is_switched_on()) {
    torch::Tensor output;
    if (!needs_weights && query.is_same(key) && query.is_same(value)) {
      const c10::impl::ExcludeDispatchKeyGuard no_autocast(
          c10::autocast_dispatch_keyset);
      output = output_of(
          {query,
           embed_dim,
           num_heads,
           weight,
           bias,
           out_weight,
           out_bias,
           mask,
           mask_type});
    }
    count_call(output.defined());
    if (output.defined()) {
      return {output, torch::Tensor()};
    }
  }
  return at::_ops::_native_multi_head_attention::redispatch(
      after_ours(keys),
      query,
      key,
      value,
      embed_dim,
      num_heads,
      weight,
      bias,
      out_weight,
      out_bias,
      mask,
      needs_weights,
      averages_weights,
      mask_type);
}

} // namespace

// NOLINTNEXTLINE(cppcoreguidelines-avoid-non-const-global-variables)
TORCH_LIBRARY_IMPL(aten, BackendSelect, library) {
  library.impl(
      "_native_multi_head_attention", TORCH_FN(native_multi_head_attention));
}

} // namespace torch_attention::operators
