#include <device/cuda_record.h>

#include <device/log.h>

#include <ATen/record_function.h>
#include <torch/types.h>

#include <algorithm>
#include <memory>
#include <string>
#include <vector>

namespace torch_attention::testing {

namespace {

using Memories = std::vector<const void*>;

bool is_on_cuda(const std::vector<torch::Tensor>& tensors) {
  return std::any_of(tensors.begin(), tensors.end(), [](const auto& x) {
    return x.is_cuda();
  });
}

/// The number of LibTorch's attention operators that this thread is inside of.
thread_local int attention_depth = 0;

/// Returns whether this is one of LibTorch's attention operators, whose own
/// memory is not ours.
bool is_attention(const std::string& name) {
  for (const auto* part :
       {"_flash_attention",
        "_efficient_attention",
        "_cudnn_attention",
        "_scaled_dot_product"}) {
    if (name.find(part) != std::string::npos) {
      return true;
    }
  }
  return false;
}

/// The inputs of an operator, which are gone when it returns.
struct Begun final : at::ObserverContext {
  bool is_inside = false;
  std::vector<Sizes> sizes;
  Memories memories;
};

void record_copy(const at::RecordFunction& fn) {
  const auto& inputs = fn.inputs();
  const auto& to = inputs[0].toTensor();
  const auto& from = inputs[1].toTensor();
  if (to.is_cuda() == from.is_cuda()) {
    return;
  }
  const bool blocks = !inputs[2].toBool();
  if (to.is_cuda()) {
    Recorder::copy_to_device();
  }
  if (blocks) {
    Recorder::wait(to.is_cuda() ? "a copy to the device" : "a copy from it");
  }
}

std::unique_ptr<at::ObserverContext> begin(const at::RecordFunction& fn) {
  auto begun = std::make_unique<Begun>();
  const std::string name = fn.name();
  begun->is_inside = attention_depth > 0;
  attention_depth += is_attention(name) ? 1 : 0;
  if (begun->is_inside) {
    return begun;
  }
  const auto given = fn.inputs();
  const auto inputs =
      tensors_in(c10::ArrayRef<c10::IValue>(given.data(), given.size()));
  for (const auto& x : inputs) {
    begun->sizes.push_back(x.sizes().vec());
    begun->memories.push_back(x.storage().unsafeGetStorageImpl());
  }
  if (name == "aten::copy_") {
    record_copy(fn);
  } else if (
      is_on_cuda(inputs) &&
      (name == "aten::_local_scalar_dense" || name == "aten::nonzero")) {
    Recorder::wait(name);
  }
  return begun;
}

void end(const at::RecordFunction& fn, at::ObserverContext* context) {
  const auto& begun = static_cast<const Begun&>(*context);
  const auto outputs = tensors_in(fn.outputs());
  attention_depth -= is_attention(fn.name()) ? 1 : 0;
  if (begun.is_inside || !is_on_cuda(outputs)) {
    return;
  }
  Operation operation{fn.name(), begun.sizes, {}};
  for (const auto& x : outputs) {
    operation.outputs.push_back(x.sizes().vec());
    const auto& known = begun.memories;
    const auto memory = x.storage().unsafeGetStorageImpl();
    if (std::find(known.begin(), known.end(), memory) == known.end()) {
      const auto bytes = static_cast<int64_t>(x.storage().nbytes());
      const auto size = static_cast<int64_t>(x.element_size());
      Recorder::allocation(bytes, bytes / size);
    }
  }
  Recorder::operation(std::move(operation));
}

} // namespace

void record_cuda() {
  static const auto handle =
      at::addGlobalCallback(at::RecordFunctionCallback(&begin, &end)
                                .needsInputs(true)
                                .needsOutputs(true)
                                .scopes({at::RecordScope::FUNCTION}));
  static_cast<void>(handle);
}

} // namespace torch_attention::testing
