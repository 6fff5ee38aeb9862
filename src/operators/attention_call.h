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

/// A call of one of them.
struct AttentionCall {
  torch::Tensor query;
  torch::Tensor key;
  torch::Tensor value;
  functional::ScaledDotProductAttentionFuncOptions options;
};

/// Reads the last `kNumArguments` of a stack.
AttentionCall read_call(const torch::jit::Stack& stack);

/// Returns an optional argument, or nothing.
template <typename T>
std::optional<T> optional_of(const c10::IValue& value) {
  return value.isNone() ? std::nullopt : std::make_optional(value.to<T>());
}

/// Returns a tensor, undefined for None.
torch::Tensor tensor_of(const c10::IValue& value);

/// Returns whether one of the last `n` values of a stack stands for something
/// else than its own numbers: a compiler or a transformation looks on.
bool is_watched(const torch::jit::Stack& stack, size_t n);

/// Returns whether a transformation of derivatives is at work on one of the
/// last `n` values of a stack (torch.func, torch.autograd.forward_ad), which
/// only LibTorch's own operators take part in.
bool is_transformed(const torch::jit::Stack& stack, size_t n);

/// Replaces the last `n` values of a stack.
void replace_last(
    torch::jit::Stack& stack,
    size_t n,
    std::initializer_list<c10::IValue> results);

/// An empty output (..., T, Dv) as all devices return it: heads lie beside each
/// other, (..., T, H, Dv), which is what a projection reads next.
torch::Tensor empty_output(const AttentionCall& call);

/// An empty tensor of `sizes` that lies as `empty_output` does.
torch::Tensor empty_heads_last(
    std::vector<c10::SymInt> sizes,
    const torch::TensorOptions& options);

/// Returns `output`, copied if it does not lie as `empty_output` does.
torch::Tensor as_output(const torch::Tensor& output);

} // namespace torch_attention::operators
