#include <operators/attention_call.h>

#include <check.h>
#include <kernels/plain.h>

#include <ATen/ExpandUtils.h>
#include <ATen/TensorSubclassLikeUtils.h>
#include <ATen/ops/empty.h>

#include <algorithm>
#include <utility>

namespace torch_attention::operators {

namespace {

using kernels::check_device;

/// Returns whether `holds` returns true for one of the tensors among the last
/// `n` values of a stack.
template <typename Holds>
bool any_tensor(const torch::jit::Stack& stack, size_t n, const Holds& holds) {
  const auto values = torch::jit::last(stack, n);
  return std::any_of(values.begin(), values.end(), [&](const auto& value) {
    return value.isTensor() && value.toTensor().defined() &&
        holds(value.toTensor());
  });
}

c10::SymIntArrayRef symbolic_leading(const torch::Tensor& x, int64_t kept) {
  return x.sym_sizes().slice(0, static_cast<size_t>(x.dim() - kept));
}

} // namespace

AttentionCall read_sizes(const torch::jit::Stack& stack) {
  constexpr auto kName = "attention";
  const auto values = torch::jit::last(stack, kNumArguments);
  AttentionCall call;
  call.query = values[0].toTensor();
  call.key = values[1].toTensor();
  call.value = values[2].toTensor();
  const auto device = call.query.device();
  check_device(kName, "key", call.key, device);
  check_device(kName, "value", call.value, device);
  for (size_t i = 0; i < kArguments.size(); ++i) {
    const auto& argument = kArguments[i];
    check_device_of_argument(kName, argument, values[3 + i], device);
    if (!argument.is_block_mask()) {
      read_argument(argument, values[3 + i], call.options);
    }
  }
  return call;
}

void read_block_mask(const torch::jit::Stack& stack, AttentionCall& call) {
  constexpr auto i = index_of("block_mask");
  read_argument(
      kArguments[i - 3],
      torch::jit::peek(stack, i, kNumArguments),
      call.options);
}

AttentionCall read_call(const torch::jit::Stack& stack) {
  auto call = read_sizes(stack);
  read_block_mask(stack, call);
  return call;
}

bool is_watched(const torch::jit::Stack& stack, size_t n) {
  return any_tensor(stack, n, [](const torch::Tensor& x) {
    return x.layout() == torch::kStrided && at::isTensorSubclassLike(x);
  });
}

bool is_transformed(const torch::jit::Stack& stack, size_t n) {
  constexpr c10::DispatchKeySet kWrappers(
      {c10::DispatchKey::FuncTorchGradWrapper,
       c10::DispatchKey::FuncTorchBatched});
  return any_tensor(stack, n, [&](const torch::Tensor& x) {
    return x.key_set().has_any(kWrappers) || kernels::has_tangent(x);
  });
}

void replace_last(
    torch::jit::Stack& stack,
    size_t n,
    std::initializer_list<c10::IValue> results) {
  torch::jit::drop(stack, n);
  stack.insert(stack.end(), results.begin(), results.end());
}

torch::Tensor empty_heads_last(
    std::vector<c10::SymInt> sizes,
    const torch::TensorOptions& options) {
  const auto dim = sizes.size();
  if (dim < 4) {
    return at::empty_symint(sizes, options);
  }
  std::swap(sizes[dim - 3], sizes[dim - 2]);
  return at::empty_symint(sizes, options).transpose(-3, -2);
}

torch::Tensor empty_output(const AttentionCall& call) {
  TORCH_ATTENTION_CHECK(
      call.query.dim() >= 2 && call.key.dim() >= 2 && call.value.dim() >= 2,
      "attention: expected query, key and value (..., tokens, head_dim), "
      "but got {}, {}, {}",
      call.query.sym_sizes(),
      call.key.sym_sizes(),
      call.value.sym_sizes());
  const bool grouped = call.options.enable_gqa() && call.query.dim() >= 3 &&
      call.key.dim() >= 3 && call.value.dim() >= 3;
  const int64_t kept = grouped ? 3 : 2;
  const auto broadcast = at::infer_size_symdimvector(
      at::infer_size_symdimvector(
          symbolic_leading(call.query, kept), symbolic_leading(call.key, kept)),
      symbolic_leading(call.value, kept));
  std::vector<c10::SymInt> sizes(broadcast.begin(), broadcast.end());
  if (grouped) {
    sizes.push_back(call.query.sym_size(-3));
  }
  sizes.push_back(call.query.sym_size(-2));
  sizes.push_back(call.value.sym_size(-1));
  return empty_heads_last(std::move(sizes), call.query.options());
}

torch::Tensor as_output(const torch::Tensor& output) {
  const auto sizes = output.sym_sizes();
  const auto expected = empty_heads_last(
      {sizes.begin(), sizes.end()}, output.options().device(torch::kMeta));
  for (int64_t i = 0; i < output.dim(); ++i) {
    if (output.size(i) != 1 && output.stride(i) != expected.stride(i)) {
      return empty_heads_last({sizes.begin(), sizes.end()}, output.options())
          .copy_(output);
    }
  }
  return output;
}

} // namespace torch_attention::operators
