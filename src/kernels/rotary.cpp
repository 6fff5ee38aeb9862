#include <kernels/rotary.h>

#include <cpu/rotary.h>
#include <kernels/backward_node.h>
#include <kernels/choice.h>
#include <kernels/elements.h>
#include <kernels/plain.h>
#include <kernels/threads.h>

#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/stack.h>
#include <torch/csrc/autograd/custom_function.h>

#include <vector>

namespace torch_attention::kernels {

namespace {

torch::Tensor by_operators(
    const torch::Tensor& x,
    const torch::Tensor& cos,
    const torch::Tensor& sin,
    bool by_halves) {
  const auto pairs = cos.size(-1);
  const auto dim = 2 * pairs;
  // (..., dim) as pairs: (..., 2, pairs) or (..., pairs, 2).
  const auto split = by_halves ? std::vector<int64_t>{2, pairs}
                               : std::vector<int64_t>{pairs, 2};
  const int64_t of_pair = by_halves ? -2 : -1;
  const auto unrotated = x.slice(-1, 0, dim).unflatten(-1, split);
  const auto first = unrotated.select(of_pair, 0);
  const auto second = unrotated.select(of_pair, 1);
  const auto rotated =
      at::stack(
          {first * cos - second * sin, second * cos + first * sin}, of_pair)
          .flatten(-2)
          .to(x.scalar_type());
  const auto whole =
      dim == x.size(-1) ? rotated : at::cat({rotated, x.slice(-1, dim)}, -1);
  return whole.contiguous();
}

/// Returns whether `table` is a `cos` or `sin` of (T, pairs) or (B, 1, T,
/// pairs) for the heads x.
bool is_table_for(const torch::Tensor& x, const torch::Tensor& table) {
  const bool for_all = table.dim() == 2;
  const bool for_each =
      table.dim() == 4 && table.size(0) == x.size(0) && table.size(1) == 1;
  // Other dtypes would decide the dtype that the operators compute in.
  const auto dtype = table.scalar_type();
  const bool has_dtype =
      dtype == torch::kFloat || dtype == compute_dtype(x.scalar_type());
  return (for_all || for_each) && table.size(-2) == x.size(2) && has_dtype &&
      is_plain(table);
}

/// Returns whether the kernel computes the rotary embedding of x.
bool is_taken(
    const torch::Tensor& x,
    const torch::Tensor& cos,
    const torch::Tensor& sin) {
  return x.dim() == 4 && x.numel() > 0 && cos.size(-1) > 0 &&
      has_element(x.scalar_type()) && is_plain(x) && !is_traced() &&
      cos.sizes() == sin.sizes() && 2 * cos.size(-1) <= x.size(3) &&
      is_table_for(x, cos) && is_table_for(x, sin) &&
      !is_recorded({&cos, &sin});
}

torch::Tensor by_kernel(
    const torch::Tensor& given,
    const torch::Tensor& given_cos,
    const torch::Tensor& given_sin,
    bool by_halves) {
  const at::AutoDispatchBelowADInplaceOrView guard;
  const auto x = with_contiguous_rows(given);
  const auto table = [&](const torch::Tensor& of_angles) {
    return of_angles.to(compute_dtype(x.scalar_type())).contiguous();
  };
  const auto cos = table(given_cos);
  const auto sin = table(given_sin);
  auto output = at::empty(x.sizes(), x.options());
  with_element(x.scalar_type(), [&](auto element) {
    using X = decltype(element);
    cpu::RotaryArguments<X> arguments;
    arguments.batch_size = x.size(0);
    arguments.num_heads = x.size(1);
    arguments.num_tokens = x.size(2);
    arguments.head_dim = x.size(3);
    arguments.pairs = cos.size(-1);
    arguments.by_halves = by_halves;
    arguments.x = read<X>(x);
    arguments.cos = data_of<cpu::Compute<X>>(cos);
    arguments.sin = data_of<cpu::Compute<X>>(sin);
    arguments.table_batch = cos.dim() == 4 ? cos.stride(0) : 0;
    arguments.table_token = cos.stride(-2);
    arguments.output = write<X>(output);
    cpu::rotate(arguments, threads());
  });
  return output;
}

/// The kernel in autograd's graph. The gradient rotates by the negative angles;
/// x is not saved.
struct RotateInGraph : torch::autograd::Function<RotateInGraph> {
  static torch::Tensor forward(
      torch::autograd::AutogradContext* context,
      const torch::Tensor& x,
      const torch::Tensor& cos,
      const torch::Tensor& sin,
      bool by_halves) {
    context->save_for_backward({cos, sin});
    context->saved_data["by_halves"] = by_halves;
    return by_kernel(x, cos, sin, by_halves);
  }

  static variable_list backward(
      torch::autograd::AutogradContext* context,
      const variable_list& gradients) {
    const auto tables = context->get_saved_variables();
    return {
        rotate(
            gradients[0],
            tables[0],
            tables[1].neg(),
            context->saved_data["by_halves"].toBool(),
            Kernel::kAuto),
        torch::Tensor(),
        torch::Tensor(),
        torch::Tensor()};
  }
};

} // namespace

torch::Tensor rotate(
    const torch::Tensor& x,
    const torch::Tensor& cos,
    const torch::Tensor& sin,
    bool by_halves,
    Kernel kernel) {
  if (resolved(kernel) == Kernel::kReference || !is_taken(x, cos, sin)) {
    return by_operators(x, cos, sin, by_halves);
  }
  return is_recorded({&x}) ? RotateInGraph::apply(x, cos, sin, by_halves)
                           : by_kernel(x, cos, sin, by_halves);
}

} // namespace torch_attention::kernels
