#include <operators/sdpa_attention.h>

#include <kernels/elements.h>
#include <kernels/plain.h>
#include <operators/broadcast.h>

#include <ATen/ExpandUtils.h>
#include <ATen/ops/_scaled_dot_product_flash_attention_for_cpu_cpu_dispatch.h>
#include <ATen/ops/logical_not.h>
#include <ATen/ops/zeros.h>

#include <cmath>

namespace torch_attention::operators {

namespace {

using kernels::Attention;

/// Expands the leading dimensions of query, key and value, all but the last
/// `kept`, to common sizes. Returns whether they broadcast.
bool broadcast_leading(Attention& a, int64_t kept) {
  if (leading(a.query, kept) == leading(a.key, kept) &&
      leading(a.query, kept) == leading(a.value, kept)) {
    return true;
  }
  auto sizes = leading(a.query, kept).vec();
  if (!broadcast(sizes, leading(a.key, kept)) ||
      !broadcast(sizes, leading(a.value, kept))) {
    return false;
  }
  for (auto* x : {&a.query, &a.key, &a.value}) {
    auto expanded = sizes;
    for (auto i = kept; i > 0; --i) {
      expanded.push_back(x->size(-i));
    }
    *x = x->expand(expanded);
  }
  return true;
}

bool fits_scores(const torch::Tensor& mask, const Attention& a) {
  auto scores = a.query.sizes().vec();
  scores.back() = a.key.size(-2);
  return mask.dim() <= a.query.dim() &&
      at::is_expandable_to(mask.sizes(), scores);
}

/// Returns the batch size for kernels: the product of the leading dimensions
/// without the heads. In three dimensions there are no heads.
int64_t batch_of(const torch::Tensor& query) {
  if (query.dim() == 3) {
    return query.size(0);
  }
  int64_t batch = 1;
  for (int64_t i = 0; i < query.dim() - 3; ++i) {
    batch *= query.size(i);
  }
  return batch;
}

/// Sets the scale, the diagonal and the mask. Returns whether our kernels
/// compute them.
bool set_rule(Attention& a, const SdpaArguments& x) {
  if (x.scale && !std::isfinite(*x.scale)) {
    return false;
  }
  a.rule.scale = x.scale;
  if (x.causal) {
    a.rule.causal = true;
    // Without offsets, ours is aligned with the last key.
    if (a.query.size(-2) != a.key.size(-2)) {
      a.query_offsets = at::zeros({batch_of(a.query)}, torch::kLong);
    }
  }
  if (!x.has_mask()) {
    return true;
  }
  if (!fits_scores(*x.mask, a)) {
    return false;
  }
  if (x.mask->scalar_type() == torch::kBool) {
    a.mask = at::logical_not(*x.mask);
  } else {
    a.bias = *x.mask;
  }
  return true;
}

bool has_numbers(const Attention& a) {
  return a.query.numel() > 0 && a.key.numel() > 0 && a.value.numel() > 0;
}

} // namespace

bool is_computed(torch::ScalarType dtype) {
  return kernels::has_element(dtype);
}

bool has_memory(const torch::Tensor& x) {
  return x.defined() && !x.is_nested() && kernels::is_plain(x);
}

void check_devices(const SdpaArguments& x) {
  constexpr auto kSdpa = "scaled_dot_product_attention";
  const auto device = x.query.device();
  kernels::check_device(kSdpa, "key", x.key, device);
  kernels::check_device(kSdpa, "value", x.value, device);
  if (x.has_mask()) {
    kernels::check_device(kSdpa, "attn_mask", *x.mask, device);
  }
}

bool is_readable(const SdpaArguments& x) {
  if (!has_memory(x.query) || !has_memory(x.key) || !has_memory(x.value)) {
    return false;
  }
  const auto dtype = x.query.scalar_type();
  if (!is_computed(dtype) || x.key.scalar_type() != dtype ||
      x.value.scalar_type() != dtype) {
    return false;
  }
  return !x.has_mask() ||
      (has_memory(*x.mask) &&
       (x.mask->scalar_type() == dtype ||
        x.mask->scalar_type() == torch::kBool));
}

std::optional<Attention> checked_attention(
    const SdpaArguments& x,
    bool shares_heads) {
  const int64_t kept = shares_heads ? 3 : 2;
  if (x.query.dim() < kept || x.key.dim() < kept || x.value.dim() < kept ||
      !(x.dropout >= 0 && x.dropout <= 1)) {
    return std::nullopt;
  }
  Attention a;
  a.query = x.query;
  a.key = x.key;
  a.value = x.value;
  a.dropout = x.dropout;
  if (!has_numbers(a) || a.query.size(-1) != a.key.size(-1) ||
      a.key.size(-2) != a.value.size(-2) || !broadcast_leading(a, kept)) {
    return std::nullopt;
  }
  if (shares_heads) {
    if (a.key.size(-3) != a.value.size(-3) ||
        a.query.size(-3) % a.key.size(-3) != 0) {
      return std::nullopt;
    }
    // The kernels treat the first of three dimensions as the batch.
    if (a.query.dim() == 3) {
      for (auto* tensor : {&a.query, &a.key, &a.value}) {
        *tensor = tensor->unsqueeze(0);
      }
    }
  }
  if (!set_rule(a, x)) {
    return std::nullopt;
  }
  return a;
}

std::optional<Attention> attention_of_flash(const SdpaArguments& x) {
  if (x.query.dim() != 4 || x.key.dim() != 4 || x.value.dim() != 4 ||
      x.dropout != 0) {
    return std::nullopt;
  }
  // LibTorch's operator takes no bool mask, and no other head_dim of values.
  if ((x.has_mask() &&
       (x.mask->scalar_type() == torch::kBool ||
        (x.mask->dim() != 2 && x.mask->dim() != 4))) ||
      x.value.size(3) != x.query.size(3)) {
    return std::nullopt;
  }
  auto a = checked_attention(x, /*shares_heads=*/true);
  // LibTorch's operator does not broadcast.
  if (!a || a->query.sizes() != x.query.sizes() ||
      a->key.sizes() != x.key.sizes() || a->value.sizes() != x.value.sizes()) {
    return std::nullopt;
  }
  return a;
}

kernels::OutputLayout layout_of_flash() {
  // It depends on the version of LibTorch, so run the kernel once.
  static const auto layout = [] {
    const auto x = at::zeros({1, 2, 2, 8});
    const auto output = std::get<0>(
        at::cpu::_scaled_dot_product_flash_attention_for_cpu(x, x, x));
    return output.stride(1) > output.stride(2)
        ? kernels::OutputLayout::kLikeQuery
        : kernels::OutputLayout::kTokensFirst;
  }();
  return layout;
}

} // namespace torch_attention::operators
