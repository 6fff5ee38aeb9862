#pragma once

#include <torch_attention/nn/options/attention.h>

#include <ATen/core/ivalue.h>
#include <torch/types.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <variant>

namespace torch_attention::operators {

using CallOptions = functional::ScaledDotProductAttentionFuncOptions;

/// Properties of an argument, combined by `|`.
enum Trait : unsigned {
  /// a tensor that may be on another device than the query
  kOnAnyDevice = 1,
  /// a tensor that has gradients
  kHasGradient = 2,
  /// an argument of `decode` as well
  kOfDecode = 4,
};

/// An argument of the operators of attention after query, key and value. Type
/// and default in the schemas follow from the type of the option.
struct Argument {
  template <typename T>
  using Option = T& (*)(CallOptions& options);

  const char* name;
  std::variant<
      Option<bool>,
      Option<double>,
      Option<std::optional<int64_t>>,
      Option<std::optional<double>>,
      Option<torch::Tensor>,
      Option<BlockMask>>
      option;
  unsigned traits = 0;

  constexpr bool has(Trait trait) const {
    return (traits & trait) != 0;
  }

  /// Returns whether what the tensor holds is checked where it is read.
  constexpr bool is_block_mask() const {
    return std::holds_alternative<Option<BlockMask>>(option);
  }
};

// clang-format takes the lambdas for blocks.
// clang-format off
#define TORCH_ATTENTION_ARGUMENT(name, option, traits) \
  Argument{name, [](CallOptions& o) -> auto& { return o.option(); }, traits}

/// The arguments, in the order of the schemas. An option that Python and
/// TorchScript are to have is a row here.
inline constexpr std::array kArguments{
    TORCH_ATTENTION_ARGUMENT("causal", causal, 0),
    TORCH_ATTENTION_ARGUMENT("window", window, kOfDecode),
    TORCH_ATTENTION_ARGUMENT("window_after", window_after, 0),
    TORCH_ATTENTION_ARGUMENT("chunk", chunk, kOfDecode),
    TORCH_ATTENTION_ARGUMENT("key_lengths", key_lengths, kOnAnyDevice),
    TORCH_ATTENTION_ARGUMENT("query_offsets", query_offsets, kOnAnyDevice),
    TORCH_ATTENTION_ARGUMENT("mask", mask, 0),
    TORCH_ATTENTION_ARGUMENT("block_mask", block_mask, kOnAnyDevice),
    TORCH_ATTENTION_ARGUMENT("bias", bias, kHasGradient),
    TORCH_ATTENTION_ARGUMENT("scale", scale, kOfDecode),
    TORCH_ATTENTION_ARGUMENT("softcap", softcap, kOfDecode),
    TORCH_ATTENTION_ARGUMENT(
        "alibi_slopes", alibi_slopes, kOnAnyDevice | kHasGradient | kOfDecode),
    TORCH_ATTENTION_ARGUMENT(
        "sinks", sinks, kOnAnyDevice | kHasGradient | kOfDecode),
    TORCH_ATTENTION_ARGUMENT("enable_gqa", enable_gqa, 0),
    TORCH_ATTENTION_ARGUMENT("dropout_p", dropout, 0),
    TORCH_ATTENTION_ARGUMENT("cu_seqlens", cu_seqlens, kOnAnyDevice),
    TORCH_ATTENTION_ARGUMENT("cu_seqlens_k", cu_seqlens_k, kOnAnyDevice)};

#undef TORCH_ATTENTION_ARGUMENT
// clang-format on

/// Returns the index of an argument, counted from query, key and value on. A
/// name that there is not does not compile.
constexpr size_t index_of(std::string_view name) {
  size_t i = 0;
  while (kArguments.at(i).name != name) {
    ++i;
  }
  return 3 + i;
}

/// Returns the number of arguments that have a trait.
constexpr size_t count_arguments(Trait trait) {
  size_t count = 0;
  for (const auto& argument : kArguments) {
    count += argument.has(trait) ? 1 : 0;
  }
  return count;
}

/// The number of all arguments, with query, key and value.
constexpr size_t kNumArguments = 3 + kArguments.size();

/// The indices of the arguments that have gradients, query, key and value
/// first.
constexpr auto kDifferentiable = [] {
  std::array<size_t, 3 + count_arguments(kHasGradient)> indices{0, 1, 2};
  size_t next = 3;
  for (size_t i = 0; i < kArguments.size(); ++i) {
    if (kArguments[i].has(kHasGradient)) {
      indices[next++] = 3 + i;
    }
  }
  return indices;
}();

/// Returns an optional argument, or nothing.
template <typename T>
std::optional<T> optional_of(const c10::IValue& value) {
  return value.isNone() ? std::nullopt : std::make_optional(value.to<T>());
}

/// Returns a tensor, undefined for None.
torch::Tensor tensor_of(const c10::IValue& value);

/// Returns the arguments of a schema, those with a trait or all.
std::string schema_of_arguments(std::optional<Trait> trait = std::nullopt);

/// Sets the option of an argument; checks what a block mask holds.
void read_argument(
    const Argument& argument,
    const c10::IValue& value,
    CallOptions& options);

/// Checks that a tensor is where attention on `device` can read it; `name` is
/// the operator's.
void check_device_of_argument(
    const char* name,
    const Argument& argument,
    const c10::IValue& value,
    torch::Device device);

} // namespace torch_attention::operators
