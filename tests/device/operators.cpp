// Every operator of the device: what is memory and views here, all others by
// the CPU's operators on copies.

#include <device/log.h>
#include <device/memory.h>

#include <operators/decode.h>

#include <ATen/EmptyTensor.h>
#include <ATen/InferSize.h>
#include <ATen/native/CPUFallback.h>
#include <ATen/ops/_reshape_alias_native.h>
#include <ATen/ops/as_strided_native.h>
#include <ATen/ops/set_native.h>
#include <ATen/ops/unfold_native.h>
#include <ATen/ops/view_native.h>
#include <torch/library.h>

#include <algorithm>
#include <array>
#include <cstring>

namespace torch_attention::testing {

namespace {

constexpr c10::DispatchKeySet kKeys(c10::DispatchKey::PrivateUse1);

/// Records the memory of a new tensor.
torch::Tensor allocated(const torch::Tensor& x) {
  const auto bytes = static_cast<int64_t>(x.storage().nbytes());
  Recorder::allocation(bytes, bytes / x.element_size());
  return x;
}

torch::Tensor empty(
    at::IntArrayRef size,
    std::optional<at::ScalarType> dtype,
    std::optional<at::Layout> /*layout*/,
    std::optional<at::Device> /*device*/,
    std::optional<bool> /*pin_memory*/,
    std::optional<at::MemoryFormat> format) {
  return allocated(at::detail::empty_generic(
      size, device_allocator(), kKeys, c10::dtype_or_default(dtype), format));
}

torch::Tensor empty_strided(
    at::IntArrayRef size,
    at::IntArrayRef stride,
    std::optional<at::ScalarType> dtype,
    std::optional<at::Layout> /*layout*/,
    std::optional<at::Device> /*device*/,
    std::optional<bool> /*pin_memory*/) {
  return allocated(at::detail::empty_strided_generic(
      size, stride, device_allocator(), kKeys, c10::dtype_or_default(dtype)));
}

/// Copies between the devices, or within this one.
torch::Tensor copy_from(
    const torch::Tensor& from,
    const torch::Tensor& to,
    bool /*non_blocking*/) {
  const bool from_here = from.device() == device();
  const bool to_here = to.device() == device();
  if (from_here && !to_here) {
    Recorder::wait("aten::_copy_from");
  } else if (to_here && !from_here) {
    Recorder::copy_to_device();
  } else {
    Recorder::operation(
        {"aten::copy_", {from.sizes().vec()}, {to.sizes().vec()}});
  }
  const OpenedMemory opened({from, to});
  auto target = to_here ? as_host(to) : to;
  target.copy_(from_here ? as_host(from) : from);
  return to;
}

const torch::Tensor& resize_(
    const torch::Tensor& self,
    at::IntArrayRef size,
    std::optional<at::MemoryFormat> format) {
  TORCH_CHECK(
      format.value_or(at::MemoryFormat::Contiguous) ==
          at::MemoryFormat::Contiguous,
      "the test's device: expected to resize to contiguous memory");
  auto* impl = self.unsafeGetTensorImpl();
  const auto bytes = at::detail::computeStorageNbytesContiguous(
      size, self.element_size(), static_cast<size_t>(self.storage_offset()));
  const auto& storage = self.storage();
  if (bytes > storage.nbytes()) {
    const auto numel = static_cast<int64_t>(bytes / self.element_size());
    const auto grown = empty({numel}, self.scalar_type(), {}, {}, {}, {});
    {
      const OpenedMemory opened({self, grown});
      if (storage.nbytes() > 0) {
        std::memcpy(grown.mutable_data_ptr(), storage.data(), storage.nbytes());
      }
    }
    // The old pages are unmapped with the old pointer.
    storage.set_data_ptr_noswap(
        grown.storage().set_data_ptr(c10::DataPtr(nullptr, device())));
    storage.set_nbytes(bytes);
  }
  impl->set_sizes_contiguous(size);
  return self;
}

torch::Tensor copy_from_and_resize(
    const torch::Tensor& from,
    const torch::Tensor& to) {
  if (from.sizes() != to.sizes()) {
    resize_(to, from.sizes(), std::nullopt);
  }
  return copy_from(from, to, /*non_blocking=*/false);
}

at::Scalar local_scalar(const torch::Tensor& self) {
  Recorder::wait("aten::_local_scalar_dense");
  const HostWork host;
  return self.cpu().item();
}

torch::Tensor& set_storage(torch::Tensor& self, at::Storage storage) {
  return at::native::set_(self, std::move(storage));
}

/// `Module::to` moves parameters by `set_data`, which LibTorch allows between
/// the devices that it knows, CUDA's included, but not for PrivateUse1.
bool has_compatible_type(const torch::Tensor& x, const torch::Tensor& from) {
  return x.layout() == torch::kStrided && from.layout() == torch::kStrided;
}

/// Returns whether the CUDA kernel of an operator waits for the device: the
/// size of its result depends on the numbers, or it returns a bool.
bool waits(const std::string& name, c10::ArrayRef<c10::IValue> arguments) {
  constexpr std::array kNames{
      "aten::nonzero",
      "aten::masked_select",
      "aten::equal",
      "aten::_unique2",
      "aten::unique_dim",
      "aten::unique_consecutive",
      "aten::repeat_interleave"};
  if (std::find(kNames.begin(), kNames.end(), name) != kNames.end()) {
    return true;
  }
  // Masks as indices become positions; `index` has asked for them by `nonzero`.
  if (name == "aten::index") {
    return false;
  }
  for (const auto& value : arguments) {
    if (value.isOptionalTensorList()) {
      for (const auto& x : value.toOptionalTensorVector()) {
        if (x && x->defined() && x->scalar_type() == torch::kBool) {
          return true;
        }
      }
    }
  }
  return false;
}

/// Throws where CUDA's operators do: some tensors are on the device and others,
/// which are not numbers of no dimension, on the CPU.
void check_one_device(
    const std::string& name,
    c10::ArrayRef<c10::IValue> arguments) {
  // Indices may be anywhere.
  constexpr std::array kIndexed{
      "aten::index",
      "aten::index_put",
      "aten::index_put_",
      "aten::_index_put_impl_"};
  if (std::find(kIndexed.begin(), kIndexed.end(), name) != kIndexed.end()) {
    return;
  }
  const auto check = [&](const torch::Tensor& x) {
    TORCH_CHECK(
        !x.defined() || x.device() == device() || x.dim() == 0,
        "Expected all tensors to be on the same device, but ",
        name,
        " got one on ",
        x.device());
  };
  for (const auto& value : arguments) {
    if (value.isTensor()) {
      check(value.toTensor());
    } else if (value.isTensorList()) {
      for (const auto& x : value.toTensorVector()) {
        check(x);
      }
    }
  }
}

void compute_on_host(const c10::OperatorHandle& op, torch::jit::Stack* stack) {
  const auto& schema = op.schema();
  const auto arguments = torch::jit::last(*stack, schema.arguments().size());
  check_one_device(schema.name(), arguments);
  Operation operation{
      c10::toString(op.operator_name()), sizes_of_tensors(arguments), {}};
  if (waits(schema.name(), arguments)) {
    Recorder::wait(operation.name);
  }
  {
    const HostWork host;
    at::native::cpu_fallback(op, stack, /*error_on_views=*/true);
  }
  operation.outputs =
      sizes_of_tensors(torch::jit::last(*stack, schema.returns().size()));
  Recorder::operation(std::move(operation));
}

TORCH_LIBRARY_IMPL(_, PrivateUse1, library) {
  library.fallback(
      torch::CppFunction::makeFromBoxedFunction<&compute_on_host>());
}

TORCH_LIBRARY_IMPL(aten, PrivateUse1, library) {
  library.impl("empty.memory_format", TORCH_FN(empty));
  library.impl("empty_strided", TORCH_FN(empty_strided));
  library.impl("_copy_from", TORCH_FN(copy_from));
  library.impl("_copy_from_and_resize", TORCH_FN(copy_from_and_resize));
  library.impl("_local_scalar_dense", TORCH_FN(local_scalar));
  library.impl("resize_", TORCH_FN(resize_));
  library.impl(
      "_has_compatible_shallow_copy_type", TORCH_FN(has_compatible_type));
  library.impl("set_.source_Storage", TORCH_FN(set_storage));
  library.impl(
      "set_.source_Storage_storage_offset",
      TORCH_FN(at::native::set_storage_cpu_));
  library.impl("set_.source_Tensor", TORCH_FN(at::native::set_tensor_));
  library.impl("as_strided", TORCH_FN(at::native::as_strided_tensorimpl));
  library.impl("view", TORCH_FN(at::native::view));
  library.impl("_reshape_alias", TORCH_FN(at::native::_reshape_alias));
  library.impl("unfold", TORCH_FN(at::native::unfold));
}

// Our operator, which is not to be computed on the host, as on CUDA devices.
TORCH_LIBRARY_IMPL(torch_attention, PrivateUse1, library) {
  library.impl(
      "decode",
      torch::CppFunction::makeFromBoxedFunction<&operators::decode>());
}

} // namespace

} // namespace torch_attention::testing
