#pragma once

#include <torch_attention/nn/options/attention.h>

#include <ATen/core/ivalue.h>
#include <ATen/core/stack.h>
#include <torch/types.h>

#include <array>
#include <initializer_list>
#include <optional>
#include <vector>

namespace torch_attention::operators {

/// The arguments of the operators of attention after query, key and value.
constexpr const char* kRules =
    "*, bool causal=False, int? window=None, int? window_after=None, "
    "int? chunk=None, Tensor? key_lengths=None, Tensor? query_offsets=None, "
    "Tensor? mask=None, Tensor? bias=None, float? scale=None, "
    "float? softcap=None, Tensor? alibi_slopes=None, Tensor? sinks=None, "
    "bool enable_gqa=False, float dropout_p=0.0, Tensor? cu_seqlens=None, "
    "Tensor? cu_seqlens_k=None";

/// The number of their arguments.
constexpr size_t kNumArguments = 19;

/// The arguments that have gradients: query, key, value, bias, alibi_slopes,
/// sinks.
constexpr std::array<size_t, 6> kDifferentiable = {0, 1, 2, 10, 13, 14};

/// A call of one of the attention operators.
struct AttentionCall {
  torch::Tensor query;
  torch::Tensor key;
  torch::Tensor value;
  functional::ScaledDotProductAttentionFuncOptions options;
};

/// Reads the last `kNumArguments` of a stack.
AttentionCall read_call(const torch::jit::Stack& stack);

/// Returns the value of an optional argument.
template <typename T>
std::optional<T> optional_of(const c10::IValue& value) {
  return value.isNone() ? std::nullopt : std::make_optional(value.to<T>());
}

/// Returns the value of an optional tensor, undefined for None.
torch::Tensor tensor_of(const c10::IValue& value);

/// Returns whether one of the last `n` values of a stack is a tensor subclass
/// or a wrapper, so that a compiler or a transformation records operators.
bool is_watched(const torch::jit::Stack& stack, size_t n);

/// Returns whether one of the last `n` values of a stack is in a transformation
/// of derivatives (torch.func, torch.autograd.forward_ad), which only
/// LibTorch's own operators support.
bool is_transformed(const torch::jit::Stack& stack, size_t n);

/// Replaces the last `n` values of a stack by `results`.
void replace_last(
    torch::jit::Stack& stack,
    size_t n,
    std::initializer_list<c10::IValue> results);

/// Returns an empty output (..., H, T, Dv) with the strides that it has on all
/// devices: those of (..., T, H, Dv), the order that a projection reads next.
torch::Tensor empty_output(const AttentionCall& call);

/// Returns an empty tensor of `sizes`, with strides as in `empty_output`.
torch::Tensor empty_heads_last(
    std::vector<c10::SymInt> sizes,
    const torch::TensorOptions& options);

/// Returns `output`, copied if its strides differ from `empty_output`.
torch::Tensor as_output(const torch::Tensor& output);

} // namespace torch_attention::operators
