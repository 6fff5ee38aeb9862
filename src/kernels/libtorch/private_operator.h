#pragma once

#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/stack.h>

#include <optional>
#include <string>
#include <vector>

/// Operators that LibTorch has no public function for.
namespace torch_attention::kernels {

/// An argument, and the names that versions of LibTorch give it.
struct NamedArgument {
  std::vector<const char*> names;
  c10::IValue value;
};

using NamedArguments = std::vector<NamedArgument>;

/// Returns the arguments in the order of `schema`. Throws where it lacks a
/// named argument, or a default of one that is not named.
torch::jit::Stack stack_of(
    const c10::FunctionSchema& schema,
    const NamedArguments& arguments);

/// An operator of LibTorch whose arguments are given by name: versions add
/// some, which then have their defaults, and rename others.
///
/// Example:
/// ```
/// static const PrivateOperator fill("aten::fill_.Scalar");
/// fill({{{"self"}, x}, {{"value"}, 1.0}});
/// ```
class PrivateOperator {
 public:
  /// Looks for `name`, such as "aten::_flash_attention_forward".
  explicit PrivateOperator(const char* name);

  /// Returns whether tensors like `x` have a kernel of this operator.
  bool has_kernel_for(const torch::Tensor& x) const;

  /// Returns the results. Throws where LibTorch lacks the operator, or as
  /// `stack_of`.
  torch::jit::Stack operator()(const NamedArguments& arguments) const;

 private:
  std::string name_;
  std::optional<c10::OperatorHandle> operator_;
};

} // namespace torch_attention::kernels
