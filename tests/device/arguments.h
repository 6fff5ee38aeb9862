#pragma once

#include <device/log.h>

#include <ATen/core/LegacyTypeDispatch.h>
#include <torch/library.h>

#include <optional>
#include <utility>
#include <vector>

/// Operators of the device that are computed here, not by the CPU's operators.
namespace torch_attention::testing {

/// The arguments of an operator by their names, which stay the same as LibTorch
/// adds further ones.
class OperatorArguments {
 public:
  OperatorArguments(
      const c10::OperatorHandle& op,
      c10::ArrayRef<c10::IValue> values);

  /// Returns a tensor, undefined if the argument is None.
  torch::Tensor tensor(const char* name);

  /// Returns the tensor that newer versions call `name`.
  torch::Tensor tensor(const char* name, const char* old_name);

  int64_t integer(const char* name);
  std::optional<int64_t> optional_integer(const char* name);
  double number(const char* name);
  std::optional<double> optional_number(const char* name);
  bool flag(const char* name);
  std::vector<bool> flags(const char* name);

  /// Throws if an argument that was not read differs from its default.
  void check_all_read() const;

 private:
  const c10::IValue* find(const char* name);
  const c10::IValue& get(const char* name);

  const c10::FunctionSchema& schema_;
  std::vector<c10::IValue> values_;
  std::vector<bool> read_;
};

using OperatorResults = std::vector<c10::IValue>;
using OperatorFunction = OperatorResults (*)(OperatorArguments&);

/// Replaces the arguments on the stack by results.
void replace_arguments(
    const c10::OperatorHandle& op,
    torch::jit::Stack* stack,
    OperatorResults results);

/// A boxed kernel of the device that calls `compute` and records it.
template <OperatorFunction compute>
void compute_here(const c10::OperatorHandle& op, torch::jit::Stack* stack) {
  const at::AutoDispatchBelowADInplaceOrView below_autograd;
  const auto values = torch::jit::last(*stack, op.schema().arguments().size());
  Operation operation{
      c10::toString(op.operator_name()), sizes_of_tensors(values), {}};
  OperatorResults results;
  {
    const HostWork host;
    OperatorArguments arguments(op, values);
    results = compute(arguments);
  }
  operation.outputs = sizes_of_tensors(results);
  Recorder::operation(std::move(operation));
  replace_arguments(op, stack, std::move(results));
}

/// Registers `compute` for an operator of aten.
template <OperatorFunction compute>
void implement(torch::Library& library, const char* name) {
  library.impl(
      name,
      torch::CppFunction::makeFromBoxedFunction<&compute_here<compute>>());
}

} // namespace torch_attention::testing
