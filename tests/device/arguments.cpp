#include <device/arguments.h>

#include <support/test.h>

#include <string>

namespace torch_attention::testing {

OperatorArguments::OperatorArguments(
    const c10::OperatorHandle& op,
    c10::ArrayRef<c10::IValue> values)
    : schema_(op.schema()), values_(values.vec()), read_(values.size()) {}

const c10::IValue* OperatorArguments::find(const char* name) {
  const auto index = schema_.argumentIndexWithName(name);
  if (!index) {
    return nullptr;
  }
  read_[static_cast<size_t>(*index)] = true;
  return &values_[static_cast<size_t>(*index)];
}

const c10::IValue& OperatorArguments::get(const char* name) {
  const auto* value = find(name);
  TORCH_CHECK(value != nullptr, "expected an argument ", name, " in ", schema_);
  return *value;
}

torch::Tensor OperatorArguments::tensor(const char* name) {
  const auto& value = get(name);
  return value.isNone() ? torch::Tensor() : value.toTensor();
}

torch::Tensor OperatorArguments::tensor(
    const char* name,
    const char* old_name) {
  return tensor(schema_.argumentIndexWithName(name) ? name : old_name);
}

int64_t OperatorArguments::integer(const char* name) {
  return get(name).toInt();
}

std::optional<int64_t> OperatorArguments::optional_integer(const char* name) {
  const auto* value = find(name);
  return value == nullptr || value->isNone() ? std::nullopt
                                             : std::optional(value->toInt());
}

double OperatorArguments::number(const char* name) {
  return get(name).toDouble();
}

std::optional<double> OperatorArguments::optional_number(const char* name) {
  const auto* value = find(name);
  return value == nullptr || value->isNone() ? std::nullopt
                                             : std::optional(value->toDouble());
}

bool OperatorArguments::flag(const char* name) {
  return get(name).toBool();
}

std::vector<bool> OperatorArguments::flags(const char* name) {
  std::vector<bool> flags;
  for (const bool flag : get(name).toBoolList()) {
    flags.push_back(flag);
  }
  return flags;
}

void OperatorArguments::check_all_read() const {
  for (size_t i = 0; i < values_.size(); ++i) {
    const auto& argument = schema_.arguments()[i];
    const auto& value = values_[i];
    const bool is_default = value.isNone() ||
        (argument.default_value() && !value.isTensor() &&
         *argument.default_value() == value);
    TORCH_CHECK(
        read_[i] || is_default,
        schema_.name(),
        ": the test's device does not support ",
        argument.name());
  }
}

void replace_arguments(
    const c10::OperatorHandle& op,
    torch::jit::Stack* stack,
    OperatorResults results) {
  torch::jit::drop(*stack, op.schema().arguments().size());
  for (auto& result : results) {
    stack->push_back(std::move(result));
  }
}

} // namespace torch_attention::testing
