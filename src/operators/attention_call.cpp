#include <operators/attention_call.h>

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

void check_devices(const AttentionCall& call) {
  constexpr auto kName = "attention";
  const auto device = call.query.device();
  const auto& options = call.options;
  check_device(kName, "key", call.key, device);
  check_device(kName, "value", call.value, device);
  check_device(kName, "mask", options.mask(), device);
  check_device(kName, "bias", options.bias(), device);
  const auto check_numbers = [&](const char* what, const torch::Tensor& x) {
    check_device(kName, what, x, device, /*elsewhere=*/true);
  };
  check_numbers("key_lengths", options.key_lengths());
  check_numbers("query_offsets", options.query_offsets());
  check_numbers("alibi_slopes", options.alibi_slopes());
  check_numbers("sinks", options.sinks());
  check_numbers("cu_seqlens", options.cu_seqlens());
  check_numbers("cu_seqlens_k", options.cu_seqlens_k());
}

c10::SymIntArrayRef symbolic_leading(const torch::Tensor& x, int64_t kept) {
  return x.sym_sizes().slice(0, static_cast<size_t>(x.dim() - kept));
}

} // namespace

torch::Tensor tensor_of(const c10::IValue& value) {
  return value.isNone() ? torch::Tensor() : value.toTensor();
}

AttentionCall read_call(const torch::jit::Stack& stack) {
  const auto values = torch::jit::last(stack, kNumArguments);
  size_t next = 0;
  const auto read = [&]() -> const c10::IValue& { return values[next++]; };
  AttentionCall call;
  call.query = read().toTensor();
  call.key = read().toTensor();
  call.value = read().toTensor();
  auto& options = call.options;
  options.causal(read().toBool());
  options.window(optional_of<int64_t>(read()));
  options.window_after(optional_of<int64_t>(read()));
  options.chunk(optional_of<int64_t>(read()));
  options.key_lengths(tensor_of(read()));
  options.query_offsets(tensor_of(read()));
  options.mask(tensor_of(read()));
  options.bias(tensor_of(read()));
  options.scale(optional_of<double>(read()));
  options.softcap(optional_of<double>(read()));
  options.alibi_slopes(tensor_of(read()));
  options.sinks(tensor_of(read()));
  options.enable_gqa(read().toBool());
  options.dropout(read().toDouble());
  options.cu_seqlens(tensor_of(read()));
  options.cu_seqlens_k(tensor_of(read()));
  check_devices(call);
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
  TORCH_CHECK(
      call.query.dim() >= 2 && call.key.dim() >= 2 && call.value.dim() >= 2,
      "attention: expected query, key and value (..., tokens, head_dim), but "
      "got ",
      call.query.sym_sizes(),
      ", ",
      call.key.sym_sizes(),
      ", ",
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
