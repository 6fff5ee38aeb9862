#include <kernels/rms_norm.h>

#include <cpu/rms_norm.h>
#include <kernels/backward_node.h>
#include <kernels/choice.h>
#include <kernels/elements.h>
#include <kernels/plain.h>
#include <kernels/threads.h>

#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>

namespace torch_attention::kernels {

namespace {

/// Returns whether `each` is undefined or a weight or bias that the kernel
/// reads.
bool fits(const torch::Tensor& each, const torch::Tensor& x) {
  if (!each.defined()) {
    return true;
  }
  const bool shared = each.dim() == 1;
  const bool of_heads =
      each.dim() == 2 && x.dim() == 4 && each.size(0) == x.size(2);
  return (shared || of_heads) && each.size(-1) == x.size(-1) &&
      each.scalar_type() == x.scalar_type() && each.is_contiguous() &&
      is_plain(each);
}

/// Returns whether the kernel computes `norm` of x.
bool is_taken(const torch::Tensor& x, const RmsNorm& norm) {
  const bool same_shape = !norm.bias.defined() ||
      (norm.weight.defined() && norm.weight.sizes() == norm.bias.sizes());
  return x.dim() > 0 && x.numel() > 0 && has_element(x.scalar_type()) &&
      is_plain(x) && !is_traced() && fits(norm.weight, x) &&
      fits(norm.bias, x) && same_shape &&
      !is_recorded({&x, &norm.weight, &norm.bias});
}

torch::Tensor by_kernel(const torch::Tensor& given, const RmsNorm& norm) {
  const at::AutoDispatchBelowADInplaceOrView guard;
  const bool of_heads = norm.weight.defined() && norm.weight.dim() == 2;
  // Heads are read in their memory layout.
  const bool by_heads =
      of_heads || (given.dim() == 4 && !given.is_contiguous());
  const auto x = by_heads ? with_contiguous_rows(given) : given.contiguous();
  // In the layout of the operators' output; rows must not share memory.
  auto output = x.is_non_overlapping_and_dense()
      ? at::empty_like(x)
      : at::empty(x.sizes(), x.options());
  // (B, T, H, D) -> (B, H, T, D), or all rows as tokens of one head.
  const auto as_heads = [&](const torch::Tensor& tokens) {
    return by_heads ? tokens.transpose(1, 2)
                    : tokens.view({1, 1, -1, tokens.size(-1)});
  };
  const auto heads = as_heads(x);
  with_element(x.scalar_type(), [&](auto element) {
    using X = decltype(element);
    cpu::RmsNormArguments<X> arguments;
    arguments.batch_size = heads.size(0);
    arguments.num_heads = heads.size(1);
    arguments.num_tokens = heads.size(2);
    arguments.head_dim = heads.size(3);
    arguments.x = read<X>(heads);
    arguments.weight = data_of<X>(norm.weight);
    arguments.bias = data_of<X>(norm.bias);
    arguments.head = of_heads ? heads.size(3) : 0;
    arguments.offset = norm.unit_offset ? 1 : 0;
    arguments.eps = norm.eps;
    arguments.output = write<X>(as_heads(output));
    cpu::rms_norm(arguments, threads());
  });
  return output;
}

} // namespace

torch::Tensor rms_norm(
    const torch::Tensor& x,
    const RmsNorm& norm,
    Kernel kernel) {
  if (resolved(kernel) != Kernel::kReference && is_taken(x, norm)) {
    return by_kernel(x, norm);
  }
  const auto wide = x.to(compute_dtype(x.scalar_type()));
  const auto mean_square = wide.square().mean(-1, /*keepdim=*/true);
  return normalised_by(wide, mean_square, norm).to(x.scalar_type());
}

torch::Tensor normalised_by(
    const torch::Tensor& x,
    const torch::Tensor& mean_square,
    const RmsNorm& norm) {
  return weighted(x * (mean_square + norm.eps).rsqrt(), norm);
}

torch::Tensor weighted(const torch::Tensor& normal, const RmsNorm& norm) {
  auto result = normal;
  const auto dtype = normal.scalar_type();
  if (norm.weight.defined()) {
    const auto factor = norm.weight.to(dtype);
    result = result * (norm.unit_offset ? factor + 1 : factor);
  }
  return norm.bias.defined() ? result + norm.bias.to(dtype) : result;
}

} // namespace torch_attention::kernels
