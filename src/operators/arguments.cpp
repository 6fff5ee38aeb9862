#include <operators/arguments.h>

#include <kernels/plain.h>

#include <ATen/TensorSubclassLikeUtils.h>
#include <ATen/functorch/TensorWrapper.h>

namespace torch_attention::operators {

namespace {

/// Returns the type of an option, its name and its default, as schemas write
/// them.
struct Declaration {
  const char* name;

  std::string operator()(Argument::Option<bool> /*option*/) const {
    return std::string("bool ") + name + "=False";
  }
  std::string operator()(Argument::Option<double> /*option*/) const {
    return std::string("float ") + name + "=0.0";
  }
  std::string operator()(
      Argument::Option<std::optional<int64_t>> /*option*/) const {
    return std::string("int? ") + name + "=None";
  }
  std::string operator()(
      Argument::Option<std::optional<double>> /*option*/) const {
    return std::string("float? ") + name + "=None";
  }
  std::string operator()(Argument::Option<torch::Tensor> /*option*/) const {
    return std::string("Tensor? ") + name + "=None";
  }
  std::string operator()(Argument::Option<BlockMask> /*option*/) const {
    return std::string("Tensor? ") + name + "=None";
  }
};

void read(const c10::IValue& value, bool& option) {
  option = value.toBool();
}

void read(const c10::IValue& value, double& option) {
  option = value.toDouble();
}

template <typename T>
void read(const c10::IValue& value, std::optional<T>& option) {
  option = optional_of<T>(value);
}

void read(const c10::IValue& value, torch::Tensor& option) {
  option = tensor_of(value);
}

void read(const c10::IValue& value, BlockMask& option) {
  if (value.isNone()) {
    option = BlockMask();
    return;
  }
  auto packed = value.toTensor();
  // torch.func wraps all arguments of a function, those without derivatives
  // too.
  while (const auto* wrapper = at::functorch::maybeGetTensorWrapper(packed)) {
    packed = wrapper->value();
  }
  TORCH_CHECK(
      !at::isTensorSubclassLike(packed),
      "attention: expected a block_mask that holds its numbers; torch.vmap "
      "over block masks works without dropout and derivatives only");
  option = BlockMask::unpack(packed);
}

} // namespace

torch::Tensor tensor_of(const c10::IValue& value) {
  return value.isNone() ? torch::Tensor() : value.toTensor();
}

std::string schema_of_arguments(std::optional<Trait> trait) {
  std::string schema = "*";
  for (const auto& argument : kArguments) {
    if (!trait || argument.has(*trait)) {
      schema += ", " + std::visit(Declaration{argument.name}, argument.option);
    }
  }
  return schema;
}

void read_argument(
    const Argument& argument,
    const c10::IValue& value,
    CallOptions& options) {
  std::visit(
      [&](const auto& option) { read(value, option(options)); },
      argument.option);
}

void check_device_of_argument(
    const char* name,
    const Argument& argument,
    const c10::IValue& value,
    torch::Device device) {
  if (value.isTensor()) {
    kernels::check_device(
        name,
        argument.name,
        value.toTensor(),
        device,
        /*elsewhere=*/argument.has(kOnAnyDevice));
  }
}

} // namespace torch_attention::operators
