#include <kernels/libtorch/private_operator.h>

#include <check.h>

namespace torch_attention::kernels {

namespace {

/// Returns the index of an argument in the schema. Throws if none of its names
/// is there.
size_t index_of(
    const c10::FunctionSchema& schema,
    const std::vector<const char*>& names) {
  const auto& arguments = schema.arguments();
  for (size_t i = 0; i < arguments.size(); ++i) {
    for (const auto* name : names) {
      if (arguments[i].name() == name) {
        return i;
      }
    }
  }
  TORCH_ATTENTION_CHECK(
      false,
      "attention: expected LibTorch's operator {} to have the argument {}, "
      "but got another version: {}",
      schema.name(),
      names.front(),
      schema);
}

c10::IValue default_of(
    const c10::FunctionSchema& schema,
    const c10::Argument& argument) {
  if (argument.default_value()) {
    return *argument.default_value();
  }
  TORCH_ATTENTION_CHECK(
      argument.type()->kind() == c10::TypeKind::OptionalType,
      "attention: expected no other arguments of LibTorch's operator {} than "
      "are known here, but got {}",
      schema.name(),
      argument.name());
  return {};
}

} // namespace

torch::jit::Stack stack_of(
    const c10::FunctionSchema& schema,
    const NamedArguments& arguments) {
  torch::jit::Stack stack(schema.arguments().size());
  std::vector<bool> given(stack.size());
  for (const auto& argument : arguments) {
    const auto i = index_of(schema, argument.names);
    stack[i] = argument.value;
    given[i] = true;
  }
  for (size_t i = 0; i < stack.size(); ++i) {
    if (!given[i]) {
      stack[i] = default_of(schema, schema.arguments()[i]);
    }
  }
  return stack;
}

PrivateOperator::PrivateOperator(const char* name)
    : name_(name),
      operator_(c10::Dispatcher::singleton().findSchema({name, ""})) {}

bool PrivateOperator::has_kernel_for(const torch::Tensor& x) const {
  return operator_ &&
      operator_->hasKernelForDispatchKey(x.options().computeDispatchKey());
}

torch::jit::Stack PrivateOperator::operator()(
    const NamedArguments& arguments) const {
  TORCH_ATTENTION_CHECK(
      operator_.has_value(),
      "attention: expected a LibTorch with the operator {}, but got none",
      name_);
  auto stack = stack_of(operator_->schema(), arguments);
  operator_->callBoxed(&stack);
  return stack;
}

} // namespace torch_attention::kernels
